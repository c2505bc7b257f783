//! Authenticates a TCP connection: both ends prove that they have the same token, and every message
//! afterwards carries a code that depends on the token. Messages are not secret.
//!
//! The server's end sends the first message, and the client's end the first proof, so that a stranger who
//! connects learns nothing that depends on the token.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use session::{Exit, Fault};
use sha2::Sha256;

use super::line::{BYTES, Lines, Seal, hex, keyed, unhex};
use super::message::PROTOCOL;

/// The minimum length of a token. A stranger who recorded a connection could guess a shorter token.
const TOKEN_BYTES_MIN: usize = 32;

/// Maximum length of a file with a token.
const TOKEN_BYTES_MAX: usize = 4096;

/// Maximum length of a message before both ends are authenticated.
pub const HANDSHAKE_BYTES_MAX: usize = 1024;

/// The permissions of users other than the owner.
const OTHERS: u32 = 0o077;

/// A shared secret.
pub struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads a token from a file that no other user may read.
    ///
    /// # Errors
    /// If the file cannot be read; [`Exit::Refused`] if other users can read it, or if the token is too
    /// short.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let failed = |error| Fault::file(path, error);
        // Do not wait for the writer if the file is a pipe.
        let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let file = File::options().read(true).custom_flags(nonblocking).open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        let refused = |why: String| {
            Fault::new(Exit::Refused, format!("{}: {why}", path.display()))
                .hint("create one: (umask 077; head -c 32 /dev/urandom | base64 > FILE), and copy it to the other machine")
        };
        if !found.is_file() {
            return Err(refused("it is not a regular file".to_owned()));
        }
        let own = rustix::process::geteuid().as_raw();
        if found.uid() != own && found.uid() != 0 {
            return Err(refused(format!("it belongs to another user (uid {})", found.uid())));
        }
        if found.mode() & OTHERS != 0 {
            return Err(refused(format!("other users can access it (mode {:o})", found.mode() & 0o7777)));
        }
        let mut bytes = Vec::new();
        file.take(TOKEN_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        let token = bytes.trim_ascii();
        if token.len() < TOKEN_BYTES_MIN || bytes.len() > TOKEN_BYTES_MAX {
            let why = format!(
                "a token has {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes; this one has {}",
                token.len()
            );
            return Err(refused(why));
        }
        Ok(Self(token.to_vec()))
    }

    /// Creates a token for tests.
    #[doc(hidden)]
    pub fn of(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// Returns a code that only an end with this token can compute from both random numbers.
    fn derived(&self, purpose: &str, nonces: &Nonces) -> Hmac<Sha256> {
        let mut code = keyed(&self.0);
        code.update(format!("netpolicy bench {PROTOCOL} {purpose}").as_bytes());
        code.update(&[0]);
        code.update(&nonces.server);
        code.update(&nonces.client);
        code
    }

    fn seal(&self, purpose: &str, nonces: &Nonces) -> Seal {
        Seal { key: self.derived(purpose, nonces).finalize().into_bytes().into(), count: 0 }
    }
}

/// The random numbers of both ends.
struct Nonces {
    server: [u8; BYTES],
    client: [u8; BYTES],
}

/// The purposes of codes. Each purpose is used once, so that a message of one end cannot be replayed as a
/// message of the other.
const CLIENT_PROOF: &str = "client";
const SERVER_PROOF: &str = "server";
const TO_SERVER: &str = "client to server";
const TO_CLIENT: &str = "server to client";

/// The messages of the handshake, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Handshake {
    /// Sent by the server: its version and random number.
    Challenge {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The server's random number: 32 bytes, in hexadecimal.
        nonce: String,
    },
    /// Sent by the client: its random number, and its proof.
    Answer {
        /// The client's random number: 32 bytes, in hexadecimal.
        nonce: String,
        /// The client's proof: 32 bytes, in hexadecimal.
        proof: String,
    },
    /// Sent by the server: its proof.
    Welcome {
        /// The server's proof: 32 bytes, in hexadecimal.
        proof: String,
    },
    /// Sent by the server: its token differs.
    Refused,
}

/// The error of a failed handshake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAuthentic {
    /// The other end has another version.
    #[error("it has version {0} of the control protocol, and this machine version {PROTOCOL}")]
    Version(u32),
    /// The other end has another token.
    #[error("it has a different token")]
    Token,
    /// The other end sent a message other than the next one of the handshake.
    #[error("it does not authenticate like `bench serve --listen` or its client")]
    Unexpected,
}

/// The handshake at the server's end.
#[derive(Debug)]
pub struct Challenger {
    nonce: [u8; BYTES],
}

impl Challenger {
    /// Chooses a random number.
    ///
    /// # Errors
    /// If the kernel provides no random numbers.
    pub fn new() -> Result<Self, Fault> {
        Ok(Self { nonce: random()? })
    }

    /// The first message.
    pub fn challenge(&self) -> Handshake {
        Handshake::Challenge { protocol: PROTOCOL, nonce: hex(&self.nonce) }
    }

    /// Checks the client's answer. Returns the last message, and the seals of received and sent messages.
    ///
    /// # Errors
    /// If the client has another token.
    pub fn check(&self, token: &Token, answer: &Handshake) -> Result<(Handshake, Seals), NotAuthentic> {
        let Handshake::Answer { nonce, proof } = answer else { return Err(NotAuthentic::Unexpected) };
        let (client, proof) = (unhexed(nonce)?, unhexed(proof)?);
        let nonces = Nonces { server: self.nonce, client };
        let expected = token.derived(CLIENT_PROOF, &nonces);
        expected.verify_slice(&proof).map_err(|_| NotAuthentic::Token)?;
        let proof = token.derived(SERVER_PROOF, &nonces).finalize().into_bytes();
        let seals = Seals { received: token.seal(TO_SERVER, &nonces), sent: token.seal(TO_CLIENT, &nonces) };
        Ok((Handshake::Welcome { proof: hex(&proof) }, seals))
    }
}

/// The handshake at the client's end.
pub struct Prover<'a> {
    token: &'a Token,
    nonces: Nonces,
}

impl std::fmt::Debug for Prover<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Prover")
    }
}

impl<'a> Prover<'a> {
    /// Answers the challenge.
    ///
    /// # Errors
    /// If the challenge has another version, or if the kernel provides no random numbers.
    pub fn answer(token: &'a Token, challenge: &Handshake) -> Result<(Self, Handshake), Fault> {
        let unauthentic = |why: NotAuthentic| Fault::new(Exit::Unsupported, why);
        let Handshake::Challenge { protocol, nonce } = challenge else {
            return Err(unauthentic(NotAuthentic::Unexpected));
        };
        if *protocol != PROTOCOL {
            return Err(unauthentic(NotAuthentic::Version(*protocol)));
        }
        let nonces = Nonces { server: unhexed(nonce).map_err(unauthentic)?, client: random()? };
        let proof = hex(&token.derived(CLIENT_PROOF, &nonces).finalize().into_bytes());
        let answer = Handshake::Answer { nonce: hex(&nonces.client), proof };
        Ok((Self { token, nonces }, answer))
    }

    /// Checks the server's proof.
    ///
    /// # Errors
    /// If the server has another token.
    pub fn check(self, welcome: &Handshake) -> Result<Seals, NotAuthentic> {
        let proof = match welcome {
            Handshake::Welcome { proof } => unhexed(proof)?,
            Handshake::Refused => return Err(NotAuthentic::Token),
            Handshake::Challenge { .. } | Handshake::Answer { .. } => return Err(NotAuthentic::Unexpected),
        };
        let expected = self.token.derived(SERVER_PROOF, &self.nonces);
        expected.verify_slice(&proof).map_err(|_| NotAuthentic::Token)?;
        let (token, nonces) = (self.token, &self.nonces);
        Ok(Seals { received: token.seal(TO_CLIENT, nonces), sent: token.seal(TO_SERVER, nonces) })
    }
}

/// The seals of both directions at one end.
#[derive(Debug)]
pub struct Seals {
    /// The seal of messages from the other end.
    pub received: Seal,
    /// The seal of messages from this end.
    pub sent: Seal,
}

/// Creates an empty buffer for the lines of a handshake.
pub fn handshake_lines() -> Lines {
    Lines::of_at_most(HANDSHAKE_BYTES_MAX)
}

fn unhexed(text: &str) -> Result<[u8; BYTES], NotAuthentic> {
    unhex(text).ok_or(NotAuthentic::Unexpected)
}

fn random() -> Result<[u8; BYTES], Fault> {
    const SOURCE: &str = "/dev/urandom";
    let mut bytes = [0; BYTES];
    let read = File::open(SOURCE).and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|error| Fault::file(SOURCE, error))?;
    Ok(bytes)
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::PermissionsExt;

    use super::super::line::NotAMessage;
    use super::*;

    fn shaken(server: &Token, client: &Token) -> Result<(Seals, Seals), NotAuthentic> {
        let challenger = Challenger::new().expect("random numbers");
        let (prover, answer) = Prover::answer(client, &challenger.challenge()).expect("a challenge");
        let (welcome, of_server) = challenger.check(server, &answer)?;
        Ok((of_server, prover.check(&welcome)?))
    }

    #[test]
    fn both_ends_with_the_same_token_understand_each_other_in_order() {
        let token = Token::of(b"0123456789abcdef");
        let (mut server, mut client) = shaken(&token, &token).expect("the same");
        let lines = [server.sent.seal(b"one\n"), server.sent.seal(b"two\n")];
        let strip = |line: &[u8]| line.strip_suffix(b"\n").map(<[u8]>::to_vec).expect("a line");
        let [one, two] = lines.map(|line| strip(&line));
        assert_eq!(client.received.open(&one), Ok(&b"one"[..]));
        assert_eq!(client.received.open(&two), Ok(&b"two"[..]));
        assert_eq!(client.received.open(&two), Err(NotAMessage::Unsealed), "repeated");
        let own = strip(&client.sent.seal(b"one\n"));
        assert_eq!(client.received.open(&own), Err(NotAMessage::Unsealed), "sent back");
        let mut changed = strip(&client.sent.seal(b"stop\n"));
        changed[2 * BYTES + 1] = b'S';
        let _ = server.received.open(&own);
        assert_eq!(server.received.open(&changed), Err(NotAMessage::Unsealed));
        assert_eq!(server.received.open(b""), Err(NotAMessage::Unsealed));
    }

    #[test]
    fn another_token_and_another_version_are_refused_at_both_ends() {
        let (token, other) = (Token::of(b"0123456789abcdef"), Token::of(b"fedcba9876543210"));
        assert_eq!(shaken(&token, &other).err(), Some(NotAuthentic::Token));
        let challenger = Challenger::new().expect("random numbers");
        let (prover, answer) = Prover::answer(&token, &challenger.challenge()).expect("a challenge");
        let (welcome, _) = challenger.check(&token, &answer).expect("the same");
        // One side's proof is not valid for the other side.
        let Handshake::Answer { proof, .. } = answer else { panic!("an answer") };
        assert_eq!(prover.check(&Handshake::Welcome { proof }).err(), Some(NotAuthentic::Token));
        let again = Prover::answer(&token, &challenger.challenge()).expect("a challenge").0;
        assert_eq!(again.check(&welcome).err(), Some(NotAuthentic::Token), "an old proof");
        let newer = Handshake::Challenge { protocol: PROTOCOL + 1, nonce: "00".repeat(BYTES) };
        let fault = Prover::answer(&token, &newer).expect_err("another version");
        assert_eq!(fault.exit, Exit::Unsupported);
        for nonce in ["", "zz", &"zz".repeat(BYTES), &"é".repeat(BYTES)] {
            let challenge = Handshake::Challenge { protocol: PROTOCOL, nonce: nonce.to_owned() };
            assert!(Prover::answer(&token, &challenge).is_err(), "{nonce}");
        }
    }

    #[test]
    fn a_token_that_others_can_read_or_guess_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        let read = |text: &str, mode: u32| {
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
            Token::read(&path).map(|token| token.0).map_err(|fault| (fault.exit, fault.cause.to_string()))
        };
        let long = "x".repeat(TOKEN_BYTES_MIN);
        assert_eq!(read(&format!("{long}\n"), 0o600), Ok(long.clone().into_bytes()));
        for (text, mode, why) in [
            (long.as_str(), 0o640, "other users"),
            (&long, 0o604, "other users"),
            ("short\n", 0o600, "this one has 5"),
            ("", 0o600, "this one has 0"),
            (&"x".repeat(TOKEN_BYTES_MAX + 1), 0o600, "bytes"),
        ] {
            let (exit, said) = read(text, mode).expect_err(why);
            assert!(exit == Exit::Refused && said.contains(why), "{said}");
        }
        let pipe = Token::read(directory.path()).expect_err("no file");
        assert_eq!(pipe.exit, Exit::Refused);
    }
}
