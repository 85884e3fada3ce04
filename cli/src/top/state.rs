//! What the screen knows, and what a key does there.

use super::inquiry::{Counters, Place, ROWS, Row, Sample, Told, Wish};
use crate::exit::UNAVAILABLE;
use crate::reply::{text, time_of};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rustix::process::Signal;
use serde_json::Value as Json;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// How many rows a page has, for the keys that leaf through them.
const PAGE: usize = 10;

/// How many holders a question names.
const NAMED: usize = 2;

/// What is for the program to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// To end with this exit code.
    End(u8),
    /// To be stopped, as by any Ctrl-Z.
    Stop,
}

/// What comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Waiting,
    LongestWait,
    Held,
    Key,
}

impl Sort {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Sort::Waiting => "waiters",
            Sort::LongestWait => "longest wait",
            Sort::Held => "time held",
            Sort::Key => "key",
        }
    }

    fn next(self) -> Sort {
        match self {
            Sort::Waiting => Sort::LongestWait,
            Sort::LongestWait => Sort::Held,
            Sort::Held => Sort::Key,
            Sort::Key => Sort::Waiting,
        }
    }
}

/// What the keys are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mode {
    Rows,
    /// They are the filter.
    Filter,
    /// A lock is looked into.
    Lock,
    /// Whether to end the holds of these owners: they are the answer.
    Question {
        text: String,
        owners: Vec<String>,
    },
}

/// The lock that is looked into.
pub(crate) struct Looked {
    pub(crate) place: Place,
    /// None before a server has told.
    pub(crate) lock: Option<Json>,
    /// It is to be broken, as soon as its holders are known.
    wants_break: bool,
}

pub(crate) struct State {
    pub(crate) interval: Duration,
    pub(crate) has_colours: bool,
    pub(crate) sort: Sort,
    pub(crate) filter: String,
    pub(crate) mode: Mode,
    /// What each server said last; None before its first answer.
    samples: BTreeMap<String, Option<Sample>>,
    /// What each server counts, for each second since its last refresh.
    rates: BTreeMap<String, BTreeMap<String, f64>>,
    /// Why no server is known.
    unknown: Option<String>,
    pub(crate) looked: Option<Looked>,
    /// What is said until the next key.
    pub(crate) said: String,
    selected: Option<Place>,
    wishes: Vec<Wish>,
}

impl State {
    pub(crate) fn new(interval: Duration, has_colours: bool) -> State {
        State {
            interval,
            has_colours,
            sort: Sort::Waiting,
            filter: String::new(),
            mode: Mode::Rows,
            samples: BTreeMap::new(),
            rates: BTreeMap::new(),
            unknown: None,
            looked: None,
            said: String::new(),
            selected: None,
            wishes: Vec::new(),
        }
    }

    /// What is wished since it was asked last.
    pub(crate) fn wishes(&mut self) -> Vec<Wish> {
        std::mem::take(&mut self.wishes)
    }

    /// The rows that pass the filter, in their order.
    pub(crate) fn rows(&self) -> Vec<&Row> {
        let all = self.samples().flat_map(|(_, sample)| &sample.rows);
        let mut rows: Vec<&Row> = all.filter(|row| self.passes(row)).collect();
        let held = |row: &Row| row.lock["holders"][0]["held_ms"].as_u64();
        match self.sort {
            Sort::Waiting => rows.sort_by_key(|row| Reverse((row.waiting, row.waited_ms))),
            Sort::LongestWait => rows.sort_by_key(|row| Reverse((row.waited_ms, row.waiting))),
            Sort::Held => rows.sort_by_key(|row| Reverse(held(row))),
            Sort::Key => rows.sort_by(|one, other| one.place.key.cmp(&other.place.key)),
        }
        rows
    }

    fn passes(&self, row: &Row) -> bool {
        let holder = &row.lock["holders"][0];
        let key = String::from_utf8_lossy(&row.place.key);
        [&*key, &text(&holder["owner"]), &text(&holder["note"])].iter().any(|text| text.contains(&self.filter))
    }

    /// Which of the rows is selected.
    pub(crate) fn selected(&self) -> usize {
        let rows = self.rows();
        rows.iter().position(|row| Some(&row.place) == self.selected.as_ref()).unwrap_or(0)
    }

    /// The servers that have told something, and what.
    fn samples(&self) -> impl Iterator<Item = (&str, &Sample)> {
        self.samples.iter().filter_map(|(name, sample)| Some((name.as_str(), sample.as_ref()?)))
    }

    /// The names of those that answer.
    pub(crate) fn servers(&self) -> Vec<&str> {
        self.samples().filter(|(_, sample)| sample.counters.is_some()).map(|(name, _)| name).collect()
    }

    /// What is wrong with servers.
    pub(crate) fn failures(&self) -> Vec<&String> {
        self.unknown.iter().chain(self.samples().flat_map(|(_, sample)| &sample.failures)).collect()
    }

    /// The holds that were lost, the latest first.
    pub(crate) fn losses(&self) -> Vec<Json> {
        let mut losses: Vec<Json> = self.samples().flat_map(|(_, sample)| sample.losses.clone()).collect();
        losses.sort_by_key(|row| Reverse(row["time_ms"].as_u64()));
        losses
    }

    /// How many wait for the locks that servers tell of, and whether there may be more.
    pub(crate) fn waiting(&self) -> (u64, bool) {
        let sums = self.samples().map(|(_, sample)| {
            (sample.rows.iter().map(|row| row.waiting).sum::<u64>(), sample.rows.len() >= ROWS as usize)
        });
        sums.fold((0, false), |sum, next| (sum.0 + next.0, sum.1 || next.1))
    }

    /// The sum of a field of all servers; None if none told it.
    pub(crate) fn sum(&self, field: &str) -> Option<u64> {
        let values = self.samples().filter_map(|(_, sample)| sample.counters.as_ref()?.fields.get(field).copied());
        values.reduce(|sum, value| sum + value)
    }

    /// The same of what they count a second.
    pub(crate) fn rate(&self, field: &str) -> Option<f64> {
        self.rates.values().filter_map(|rates| rates.get(field).copied()).reduce(|sum, value| sum + value)
    }

    pub(crate) fn hear(&mut self, told: Told) {
        match told {
            Told::Servers(Err(why)) => self.unknown = Some(why),
            Told::Servers(Ok(names)) => {
                self.unknown = None;
                self.samples.retain(|name, _| names.contains(name));
                self.rates.retain(|name, _| names.contains(name));
                for name in names {
                    self.samples.entry(name).or_default();
                }
            }
            // Unless it is not asked any more.
            Told::Sample(name, sample) => {
                let Some(known) = self.samples.get_mut(&name) else { return };
                let before = known.as_ref().and_then(|before| before.counters.as_ref());
                let rates = before.zip(sample.counters.as_ref()).map(|(before, now)| rates(before, now));
                self.rates.insert(name, rates.unwrap_or_default());
                *known = Some(sample);
            }
            Told::Lock(place, lock) => {
                let Some(looked) = self.looked.as_mut().filter(|looked| looked.place == place) else { return };
                let wants_break = std::mem::take(&mut looked.wants_break);
                looked.lock = Some(lock);
                if wants_break && self.mode == Mode::Lock {
                    self.ask_for_break();
                }
            }
            Told::Said(text) => self.said = text,
        }
    }

    /// Does what a key is for.
    pub(crate) fn press(&mut self, key: KeyEvent) -> Option<Act> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Some(Act::End(crate::exit::by_signal(Signal::INT.as_raw()))),
                KeyCode::Char('z') => Some(Act::Stop),
                _ => None,
            };
        }
        self.said.clear();
        match self.mode.clone() {
            Mode::Rows => return self.press_in_rows(key.code),
            Mode::Filter => self.press_in_filter(key.code),
            Mode::Lock => return self.press_in_lock(key.code),
            Mode::Question { owners, .. } => {
                self.mode = Mode::Lock;
                match (key.code, &self.looked) {
                    (KeyCode::Char('y' | 'Y'), Some(looked)) => {
                        self.wishes.push(Wish::Break(looked.place.clone(), owners));
                    }
                    _ => "nothing was broken".clone_into(&mut self.said),
                }
            }
        }
        None
    }

    /// The end, with what the servers said last.
    fn quit(&self) -> Act {
        Act::End(if self.failures().is_empty() { 0 } else { UNAVAILABLE })
    }

    fn press_in_rows(&mut self, code: KeyCode) -> Option<Act> {
        match code {
            KeyCode::Char('q') => return Some(self.quit()),
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Up | KeyCode::Char('k') => self.select(|row| row.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(|row| row + 1),
            KeyCode::PageUp => self.select(|row| row.saturating_sub(PAGE)),
            KeyCode::PageDown => self.select(|row| row + PAGE),
            KeyCode::Home => self.select(|_| 0),
            KeyCode::End => self.select(|_| usize::MAX),
            KeyCode::Enter => self.look(false),
            KeyCode::Char('b') => self.look(true),
            _ => {}
        }
        None
    }

    fn press_in_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(char) => self.filter.push(char),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.mode = Mode::Rows,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Rows;
            }
            _ => {}
        }
    }

    fn press_in_lock(&mut self, code: KeyCode) -> Option<Act> {
        match code {
            KeyCode::Char('q') => return Some(self.quit()),
            KeyCode::Char('b') => self.ask_for_break(),
            KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace => {
                self.looked = None;
                self.mode = Mode::Rows;
                self.wishes.push(Wish::Look(None));
            }
            _ => {}
        }
        None
    }

    fn select(&mut self, to: impl FnOnce(usize) -> usize) {
        let rows = self.rows();
        let number = to(self.selected()).min(rows.len().saturating_sub(1));
        self.selected = rows.get(number).map(|row| row.place.clone());
    }

    fn look(&mut self, wants_break: bool) {
        self.select(|row| row);
        let Some(place) = self.selected.clone() else { return };
        if !place.is_near {
            self.said = format!("it is in database {}: name that in the URL", place.db);
            return;
        }
        self.mode = Mode::Lock;
        self.wishes.push(Wish::Look(Some(place.clone())));
        self.looked = Some(Looked { place, lock: None, wants_break });
    }

    /// Asks whether to end the holds that are shown.
    fn ask_for_break(&mut self) {
        let Some(looked) = &mut self.looked else { return };
        let Some(lock) = &looked.lock else {
            looked.wants_break = true;
            return;
        };
        let holders = lock["holders"].as_array().map_or(&[][..], Vec::as_slice);
        let owners: Vec<String> = holders.iter().map(|holder| text(&holder["owner"])).collect();
        if owners.is_empty() {
            "it is free: there is nothing to break".clone_into(&mut self.said);
            return;
        }
        let how = |holder: &Json| format!("{} (held for {})", text(&holder["owner"]), time_of(&holder["held_ms"]));
        let names = holders.iter().take(NAMED).map(how).collect::<Vec<_>>().join(", ");
        let more = owners.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        self.mode = Mode::Question { text: format!("break the hold of {names}{more}? [y/N]"), owners };
    }
}

/// What a server has counted for each second between two refreshes.
fn rates(before: &Counters, now: &Counters) -> BTreeMap<String, f64> {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let rate = |(name, value): (&String, &u64)| {
        // A server that was started again counts from zero.
        let more = value.checked_sub(*before.fields.get(name)?).filter(|_| seconds > 0.0)?;
        #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
        Some((name.clone(), more as f64 / seconds))
    };
    now.fields.iter().filter_map(rate).collect()
}
