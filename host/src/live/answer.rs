//! Answers to a connection, each within a limited time: a client that reads or writes too slowly loses its slot.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::head::{self, Refused, Request};

/// The longest time to receive a request's head, and to send an answer.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// The longest wait for a client to close, and the most bytes that are read from it meanwhile.
const FAREWELL: Duration = Duration::from_millis(500);
const UNREAD: usize = 1 << 20;

/// Header fields of every answer: browsers run, load and frame nothing from another origin.
const FIELDS: &str = "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; \
     connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'\r\n\
     X-Content-Type-Options: nosniff\r\n\
     Referrer-Policy: no-referrer\r\n\
     Cache-Control: no-store\r\n\
     Cross-Origin-Resource-Policy: same-origin\r\n\
     Connection: close\r\n";

/// A connection with a deadline.
pub struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl<'a> Timed<'a> {
    /// A connection with a deadline `time` from now.
    pub fn new(stream: &'a TcpStream, time: Duration) -> Timed<'a> {
        Timed { stream, until: Instant::now() + time }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        // A timeout of zero would mean no timeout.
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        let mut stream = self.stream;
        stream.read(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        let mut stream = self.stream;
        stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a request.
///
/// # Errors
/// Why the request is refused; `None` if the client is gone.
pub fn request(stream: &TcpStream, names: &[String; 2]) -> Result<Request, Option<Refused>> {
    let (mut head, mut filled) = ([0; head::LONGEST], 0);
    let mut timed = Timed::new(stream, PATIENCE);
    loop {
        match timed.read(&mut head[filled..]) {
            Ok(0) => return Err(None),
            Ok(read) => filled += read,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(Some(Refused::Slow));
            }
            Err(_) => return Err(None),
        }
        if let Some(request) = head::read(&head[..filled], names).map_err(Some)? {
            return Ok(request);
        }
    }
}

/// The head of an answer, with `more` header fields; without a `length` for a stream.
fn head_of(status: &str, kind: &str, length: Option<usize>, more: &str) -> String {
    let length = length.map_or(String::new(), |length| format!("Content-Length: {length}\r\n"));
    format!("HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\n{FIELDS}{length}{more}\r\n")
}

/// Answers with a `body` of type `kind`, or with the head alone.
pub fn whole(stream: &TcpStream, kind: &str, body: &str, head_alone: bool) {
    let head = head_of("200 OK", kind, Some(body.len()), "");
    let mut timed = Timed::new(stream, PATIENCE);
    let body = if head_alone { "" } else { body };
    let written = timed.write_all(head.as_bytes()).and_then(|()| timed.write_all(body.as_bytes()));
    if written.is_ok() {
        close(stream, FAREWELL);
    }
}

/// The head of a stream of events.
pub fn head_of_events() -> String {
    head_of("200 OK", "text/event-stream", None, "")
}

/// Writes a part of an answer.
///
/// # Errors
/// A client that is gone, or that does not read.
pub fn part(stream: &TcpStream, text: &str) -> io::Result<()> {
    Timed::new(stream, PATIENCE).write_all(text.as_bytes())
}

/// The answer that refuses a request; its status is the whole message.
fn refusal(why: Refused) -> String {
    let more = if why == Refused::Method { "Allow: GET, HEAD\r\n" } else { "" };
    head_of(why.status(), "text/plain", Some(0), more)
}

/// Refuses a request and closes the connection.
pub fn refuse(stream: &TcpStream, why: Refused) {
    if Timed::new(stream, PATIENCE).write_all(refusal(why).as_bytes()).is_ok() {
        close(stream, FAREWELL);
    }
}

/// Refuses, without waiting, a connection for which there is no slot.
pub fn turn_away(stream: &TcpStream) {
    let mut unread = [0; 4 << 10];
    let (mut read, mut write) = (stream, stream);
    if stream.set_nonblocking(true).is_ok() {
        let _ = read.read(&mut unread);
        let _ = write.write(refusal(Refused::Full).as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
    }
}

/// Gives the client `time` to close: if data from the client were left unread, the system would discard the answer.
pub fn close(stream: &TcpStream, time: Duration) {
    if stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let (mut timed, mut piece, mut unread) = (Timed::new(stream, time), [0; 4 << 10], 0);
    while unread < UNREAD {
        match timed.read(&mut piece) {
            Ok(0) => return,
            Ok(read) => unread += read,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
