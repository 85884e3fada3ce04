//! The terminal while it is a screen. However that ends, it is then as it was.

use super::draw::draw;
use super::state::State;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use std::io::{self, Stdout, stdout};
use std::panic;

/// As of a program that ends itself.
const PANICKED: i32 = 101;

pub(crate) struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    /// Takes the terminal of the standard output. A panic of any thread ends the program from now on.
    pub(crate) fn open() -> io::Result<Screen> {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |what| {
            leave();
            hook(what);
            std::process::exit(PANICKED);
        }));
        let screen = Screen(Terminal::new(CrosstermBackend::new(stdout()))?);
        enter()?;
        Ok(screen)
    }

    pub(crate) fn draw(&mut self, state: &State) -> io::Result<()> {
        self.0.draw(|frame| draw(frame, state)).map(drop)
    }

    /// Gives the terminal back.
    pub(crate) fn close(&mut self) {
        leave();
    }

    /// Takes it again.
    pub(crate) fn open_again(&mut self) -> io::Result<()> {
        // To clear this one would ask the terminal where its cursor is, while another thread reads keys.
        self.0 = Terminal::new(CrosstermBackend::new(stdout()))?;
        enter()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide).inspect_err(|_| leave())
}

fn leave() {
    // One that is gone needs nothing.
    drop(execute!(stdout(), LeaveAlternateScreen, Show));
    make_usable();
}

/// Lets the terminal do with keys what it did before. Writes nothing: it may take nothing any more.
pub(crate) fn make_usable() {
    drop(disable_raw_mode());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
    use rustix::termios::tcgetattr;
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Stdio};

    /// The test below, in a process that it starts.
    const INNER: &str = "REDIS_LOCK_TEST_PANICS";

    #[test]
    fn the_terminal_is_as_it_was_after_a_panic() {
        if std::env::var_os(INNER).is_some() {
            let _screen = Screen::open().expect("a terminal");
            // As one of another thread would.
            std::thread::spawn(|| panic!("for the test")).join().ok();
            // It goes on.
            std::process::exit(0);
        }
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("a terminal");
        let theirs = || ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("its other end");
        let kept = theirs();
        let before = format!("{:?}", tcgetattr(&kept).expect("attributes"));
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "top::screen::tests::the_terminal_is_as_it_was_after_a_panic", "--nocapture"]);
        command
            .env(INNER, "1")
            .stdin(Stdio::from(theirs()))
            .stdout(Stdio::from(theirs()))
            .stderr(Stdio::from(theirs()));
        let mut child = command.spawn().expect("a process");
        drop(command);
        let mut shown = String::new();
        let mut terminal = File::from(ours.try_clone().expect("a descriptor"));
        while !shown.contains("for the test") {
            let mut bytes = [0; 4096];
            let count = terminal.read(&mut bytes).expect("output");
            shown += &String::from_utf8_lossy(&bytes[..count]);
        }
        assert_eq!(child.wait().expect("its end").code(), Some(PANICKED), "{shown}");
        assert_eq!(format!("{:?}", tcgetattr(&kept).expect("attributes")), before);
        // It was a screen, and is none any more, before that is told.
        let places = ["\x1b[?1049h", "\x1b[?1049l", "for the test"].map(|text| shown.find(text));
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{shown:?}");
    }
}
