//! `redis-lock top`: a screen of the locks that are waited for. `state` decides what a key does, `draw` what is shown:
//! they do nothing else. `inquiry` asks the servers, `screen` has the terminal.

mod draw;
mod inquiry;
mod screen;
mod state;

use crate::args::Top;
use crate::exit::{self, say};
use crate::sys::{self, Signals};
use crate::table::may_colour;
use inquiry::{Told, Wish};
use ratatui::crossterm::event::{self, Event as Input, KeyEvent};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, getpid, kill_process};
use screen::Screen;
use state::{Act, State};
use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Those that end it or stop it. That of the window's size is crossterm's.
const SIGNALS: [Signal; 5] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::TSTP];

/// How long the terminal may take to be as it was, once a signal has come: nobody may read there any more.
const LAST_MOMENT: Duration = Duration::from_secs(5);

/// What the screen waits for.
enum Event {
    Key(KeyEvent),
    /// The window has another size.
    Size,
    Signal(Signal),
    Told(Told),
    /// The terminal is gone.
    Closed,
}

/// Shows it until the user has seen enough, and gives the exit code.
pub(crate) fn show(top: Top) -> u8 {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        say("top needs a terminal; elsewhere there are ls, info and log");
        return exit::USAGE;
    }
    // Before there are threads, which inherit it.
    let shown = Signals::of(&SIGNALS).and_then(|signals| run(top, signals));
    shown.unwrap_or_else(|error| {
        say(format_args!("terminal: {error}"));
        exit::UNAVAILABLE
    })
}

fn run(top: Top, signals: Signals) -> io::Result<u8> {
    // From here on another size of the window is an event, also one before the first key is waited for.
    event::poll(Duration::ZERO)?;
    let mut screen = Screen::open()?;
    let mut state = State::new(top.interval, may_colour() && !top.no_color);
    let (sender, events) = channel();
    let (wishes, wished) = channel();
    let keys = sender.clone();
    thread::spawn(move || read_keys(&keys));
    let caught = sender.clone();
    let (continued, goes_on) = channel();
    thread::spawn(move || catch(signals, &caught, &goes_on));
    thread::spawn(move || {
        inquiry::ask(&top.servers, top.interval, &wished, |told| sender.send(Event::Told(told)).is_ok())
    });
    loop {
        screen.draw(&state)?;
        match play(&mut state, &events, &wishes) {
            None => {}
            Some(Act::End(code)) => return Ok(code),
            Some(Act::Stop) => {
                screen.close();
                sys::stop(true, || {});
                screen.open_again()?;
                // Its thread lasts.
                continued.send(()).ok();
            }
        }
    }
}

/// Waits for an event, and does what follows from all that have come. What is for the screen to do is returned.
fn play(state: &mut State, events: &Receiver<Event>, wishes: &Sender<Wish>) -> Option<Act> {
    let mut next = Some(events.recv().ok()?);
    while let Some(event) = next {
        let act = match event {
            Event::Key(key) => match state.press(key) {
                Some(Act::Stop) => {
                    // It comes back as an event, unless it is ignored.
                    kill_process(getpid(), Signal::TSTP).ok();
                    None
                }
                act => act,
            },
            Event::Size => None,
            Event::Signal(Signal::TSTP) => Some(Act::Stop),
            Event::Signal(signal) => Some(Act::End(exit::by_signal(signal.as_raw()))),
            Event::Closed => Some(Act::End(exit::UNAVAILABLE)),
            Event::Told(told) => {
                state.hear(told);
                None
            }
        };
        for wish in state.wishes() {
            // Its thread lasts.
            drop(wishes.send(wish));
        }
        if act.is_some() {
            return act;
        }
        next = events.try_recv().ok();
    }
    None
}

fn read_keys(events: &Sender<Event>) {
    loop {
        let event = match event::read() {
            Ok(Input::Key(key)) if key.is_press() => Event::Key(key),
            Ok(Input::Resize(..)) => Event::Size,
            Ok(_) => continue,
            Err(_) => Event::Closed,
        };
        let is_last = matches!(event, Event::Closed);
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}

/// Tells of signals. None is read while the program is being stopped by one: that would not stop it.
fn catch(mut signals: Signals, events: &Sender<Event>, goes_on: &Receiver<()>) {
    loop {
        // Another signal interrupts it at most.
        poll(&mut [PollFd::new(&signals, PollFlags::IN)], None).ok();
        while let Some(signal) = signals.next() {
            drop(events.send(Event::Signal(signal)));
            if signal == Signal::TSTP {
                goes_on.recv().ok();
            } else {
                thread::sleep(LAST_MOMENT);
                screen::make_usable();
                std::process::exit(exit::by_signal(signal.as_raw()).into());
            }
        }
    }
}
