//! What the screen shows. 80 columns and 24 rows suffice.

use super::state::{Mode, State};
use crate::exit::printable;
use crate::reply::{text, time_of};
use crate::shown;
use crate::time;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState};
use std::time::Duration;

/// How many losses are shown at most, below their head.
const LOSSES: usize = 4;

/// Fills the screen.
pub(crate) fn draw(frame: &mut Frame<'_>, state: &State) {
    let width = usize::from(frame.area().width);
    let failures: Vec<Line<'_>> = state
        .failures()
        .into_iter()
        .flat_map(|why| folded(&printable(why), width))
        .map(|why| colour(state, why, Color::Red))
        .collect();
    let foot = foot(state, width);
    let losses: Vec<String> = shown::losses(&state.losses()).lines().into_iter().take(LOSSES + 1).collect();
    let height = |lines: usize| Constraint::Length(u16::try_from(lines).unwrap_or(u16::MAX));
    let parts = Layout::vertical([
        Constraint::Length(3),
        height(failures.len()),
        Constraint::Min(3),
        height(losses.len()),
        height(foot.len()),
    ]);
    let [top, failed, middle, lost, bottom] = parts.areas(frame.area());
    frame.render_widget(Paragraph::new(head(state)), top);
    frame.render_widget(Paragraph::new(failures), failed);
    match &state.looked {
        Some(_) => lock(frame, state, middle),
        None => rows(frame, state, middle),
    }
    frame.render_widget(Paragraph::new(headed(losses)), lost);
    frame.render_widget(Paragraph::new(foot), bottom);
}

fn colour(state: &State, text: String, colour: Color) -> Line<'static> {
    let style = Style::new();
    Line::styled(text, if state.has_colours { style.fg(colour) } else { style })
}

/// Lines of which the first is a head.
fn headed(lines: Vec<String>) -> Vec<Line<'static>> {
    let bold = |(number, text)| if number == 0 { Line::styled(text, Style::new().bold()) } else { Line::raw(text) };
    lines.into_iter().enumerate().map(bold).collect()
}

fn head(state: &State) -> Vec<Line<'static>> {
    let servers = Some(state.servers().join(", ")).filter(|servers| !servers.is_empty());
    let servers = servers.unwrap_or_else(|| "no server yet".to_owned());
    let number = |name: &str| state.sum(name).map_or("-".to_owned(), |value| value.to_string());
    let rate = |name: &str| state.rate(name).map_or("-".to_owned(), |rate| format!("{rate:.1}"));
    let (waiting, may_be_more) = state.waiting();
    let now = format!(
        "locks {}  waiters {waiting}{}  clients {}  places {}  contended {}  lapsed {}",
        number("lock_leases"),
        if may_be_more { "+" } else { "" },
        number("lock_waiters"),
        number("lock_places"),
        number("lock_contended_keys"),
        number("lock_lapsed"),
    );
    let rates = format!(
        "per second: granted {}  waits {}  timed out {}  lapsed {}  broken {}",
        rate("lock_granted"),
        rate("lock_queued"),
        rate("lock_timed_out"),
        rate("lock_lapsed"),
        rate("lock_broken"),
    );
    let filter = if state.filter.is_empty() { String::new() } else { format!(", with \"{}\"", state.filter) };
    let every = time::text(state.interval);
    let title = format!("redis-lock top: every {every}, by {}{filter}  {servers}", state.sort.name());
    let title = colour(state, printable(title), Color::Cyan).patch_style(Style::new().bold());
    vec![title, Line::raw(now), Line::raw(rates)]
}

fn rows(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let rows = state.rows();
    let names: Vec<&str> = rows.iter().map(|row| row.place.server.as_str()).collect();
    let several = names.iter().any(|name| *name != names[0]);
    let cells = |row: &&super::inquiry::Row| {
        let (holder, key) = (&row.lock["holders"][0], String::from_utf8_lossy(&row.place.key));
        let more = row.lock["holding"].as_u64().unwrap_or(0).saturating_sub(1);
        let more = if more > 0 { format!(" +{more}") } else { String::new() };
        let key = if row.place.is_near { key.into_owned() } else { format!("{key} (db {})", row.place.db) };
        let server = several.then(|| row.place.server.clone());
        let others = [
            row.waiting.to_string(),
            time::text(Duration::from_millis(row.waited_ms)),
            time_of(&holder["held_ms"]),
            key,
            text(&holder["owner"]) + &more,
            text(&holder["note"]),
        ];
        Row::new(server.into_iter().chain(others).map(printable))
    };
    let first = several.then_some(("SERVER", Constraint::Fill(3)));
    let columns = [
        ("WAITERS", Constraint::Length(7)),
        ("LONGEST", Constraint::Length(8)),
        ("HELD", Constraint::Length(8)),
        ("KEY", Constraint::Fill(3)),
        ("HOLDER", Constraint::Fill(4)),
        ("NOTE", Constraint::Fill(2)),
    ];
    let (names, widths): (Vec<&str>, Vec<Constraint>) = first.into_iter().chain(columns).unzip();
    let table = Table::new(rows.iter().map(cells), widths)
        .header(Row::new(names).style(Style::new().bold()))
        .row_highlight_style(Style::new().reversed());
    let mut selection = TableState::new().with_selected(state.selected());
    frame.render_stateful_widget(table, area, &mut selection);
}

fn lock(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let Some(looked) = &state.looked else { return };
    let key = printable(String::from_utf8_lossy(&looked.place.key));
    let lines = match &looked.lock {
        None => vec![Line::raw(format!("{key}: asked for"))],
        Some(lock) if lock.is_null() => vec![Line::raw(format!("{key} is free"))],
        Some(lock) => {
            let mut lines = vec![Line::raw(shown::head(lock))];
            lines.extend(headed(shown::holders(lock).lines()));
            lines.extend(headed(shown::waiters(lock).lines()));
            lines
        }
    };
    frame.render_widget(Paragraph::new(lines), area);
}

/// What is asked or said, else what the keys are for.
fn foot(state: &State, width: usize) -> Vec<Line<'static>> {
    let text = match &state.mode {
        Mode::Question { text, .. } => printable(text),
        Mode::Filter => printable(format_args!("/{}_", state.filter)),
        _ if !state.said.is_empty() => printable(&state.said),
        Mode::Rows => return vec![Line::raw("q quit  s sort  / filter  enter look into it  b break")],
        Mode::Lock => return vec![Line::raw("q quit  esc back  b break")],
    };
    folded(&text, width).into_iter().map(|line| colour(state, line, Color::Yellow)).collect()
}

/// A text in lines of so many characters, where its words allow it.
fn folded(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
