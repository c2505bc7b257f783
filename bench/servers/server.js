// An HTTP server of Node's library that answers every request alike.
const [address, port] = process.argv.slice(2);
const body = '0123456789012345678901234567890123456789\n';
const server = require('http').createServer((_, response) => response.end(body));
server.keepAliveTimeout = 0;
server.listen(Number(port), address);
