//! Servers that behave as real ones seldom do: the test plays them. Replies come when the test says so, or never.

use redis::{Parser, Value, from_redis_value};
use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

/// A request, and the connection that waits for the reply.
pub struct Request {
    /// Its words, with the command first.
    pub words: Vec<String>,
    /// The number of its connection.
    pub number: usize,
    connection: TcpStream,
}

impl Request {
    /// True if this is one of its words.
    pub fn has(&self, word: &str) -> bool {
        self.words.iter().any(|other| other == word)
    }

    /// Answers it.
    pub fn reply(&self, text: &str) {
        // The client may have gone.
        drop((&self.connection).write_all(text.as_bytes()));
    }

    /// Closes its connection.
    pub fn hang_up(&self) {
        drop(self.connection.shutdown(Shutdown::Both));
    }
}

/// Opens a port: its number, and all requests that come there, over whichever connection. A greeting is answered at
/// once, and so is the question who this is: by nothing.
pub fn play() -> (u16, Receiver<Request>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let (sender, requests) = channel();
    thread::spawn(move || {
        for (number, connection) in listener.incoming().map_while(Result::ok).enumerate() {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut parser = Parser::new();
                while let Ok(request @ Value::Array(_)) = parser.parse_value(&connection) {
                    let words: Vec<String> = from_redis_value(request).expect("words");
                    let connection = connection.try_clone().expect("a descriptor");
                    let request = Request { words, number, connection };
                    if request.has("HELLO") {
                        request.reply("*0\r\n");
                    } else if request.has("INFO") {
                        request.reply("$0\r\n\r\n");
                    } else if sender.send(request).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, requests)
}
