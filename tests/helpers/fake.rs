//! A server in memory that a helper gives to its users' tests, spoken to as to a real one.
//!
//! It lives in the agent's process. A port here takes the commands of real clients, and hands each to the agent as a
//! request `server`. So a scenario that needs no wire runs on it as it is.

use crate::agent::Requests;
use redis::Value;
use serde_json::{Value as Json, json};
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

/// Opens a port for the server in memory of this agent: its number. The thread ends with the test program.
pub(crate) fn serve(requests: Requests) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let requests = requests.clone();
            thread::spawn(move || answer(stream, &requests));
        }
    });
    port
}

/// Answers the commands of a connection, in their order, until it or the agent ends.
fn answer(stream: TcpStream, requests: &Requests) {
    let (mut replies, mut commands) = (stream.try_clone().unwrap(), BufReader::new(stream));
    let mut parser = redis::Parser::new();
    while let Ok(Value::Array(words)) = parser.parse_value(&mut commands) {
        let words: Vec<String> = words.iter().map(|word| redis::from_redis_value_ref(word).unwrap()).collect();
        // What clients tell of themselves is for real servers.
        let reply = match words[0].as_str() {
            "CLIENT" | "HELLO" => json!("OK"),
            _ => match requests.send(json!({"do": "server", "command": words})).value_or_end() {
                // Without the field the agent has no such server, which must not look like null.
                Some(answer) => answer.get("reply").unwrap_or_else(|| panic!("{answer}")).clone(),
                None => return,
            },
        };
        if replies.write_all(&encoded(&reply)).is_err() {
            return;
        }
    }
}

/// A reply in the protocol of servers.
fn encoded(reply: &Json) -> Vec<u8> {
    match reply {
        Json::Number(number) => format!(":{number}\r\n").into_bytes(),
        Json::String(text) => format!("${}\r\n{text}\r\n", text.len()).into_bytes(),
        Json::Array(items) => {
            let mut bytes = format!("*{}\r\n", items.len()).into_bytes();
            bytes.extend(items.iter().flat_map(encoded));
            bytes
        }
        Json::Object(error) => format!("-{}\r\n", error["error"].as_str().unwrap()).into_bytes(),
        Json::Null => b"$-1\r\n".to_vec(),
        Json::Bool(_) => panic!("no reply of RESP2: {reply}"),
    }
}
