// An HTTP server of Go's library that answers every request alike.
package main

import (
	"context"
	"net"
	"net/http"
	"os"
)

func main() {
	body := []byte("0123456789012345678901234567890123456789\n")
	config := net.ListenConfig{}
	config.SetMultipathTCP(false) // Go's default since 1.24; the client speaks TCP
	listener, err := config.Listen(context.Background(), "tcp4", os.Args[1])
	if err != nil {
		panic(err)
	}
	panic(http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(body) })))
}
