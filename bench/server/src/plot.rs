//! A picture of rows that have goals: the spread of each ratio, and what it is to be.

use crate::row::{Goal, Row, Verdict};
use plotters::prelude::*;
use std::error::Error;
use std::path::Path;

const WIDTH: u32 = 1_220;
const ROW_HEIGHT: u32 = 34;
const MARGIN: u32 = 12;
const TITLE_HEIGHT: u32 = 40;
const AXIS_HEIGHT: u32 = 60;
const NAMES_WIDTH: u32 = 600;
const NAME_SIZE: i32 = 17;

/// Draws all rows that have a goal.
pub fn draw(path: &Path, title: &str, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let rows: Vec<(&Row, Goal)> = rows.iter().filter_map(|row| Some((row, row.goal?))).collect();
    let most = rows.iter().map(|(row, goal)| row.ratio.max.max(goal.at_most)).fold(1.0, f64::max) * 1.05;
    let height = TITLE_HEIGHT + AXIS_HEIGHT + 2 * MARGIN + ROW_HEIGHT * rows.len() as u32;
    let area = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(MARGIN)
        .x_label_area_size(AXIS_HEIGHT)
        .margin_left(NAMES_WIDTH)
        .build_cartesian_2d(0.0..most, rows.len() as f64..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .label_style(("sans-serif", 15))
        .light_line_style(TRANSPARENT)
        .x_desc("ratio, least - median - most; the red mark is what it may be at most, the blue one the aim")
        .draw()?;
    for (place, (row, goal)) in rows.iter().enumerate() {
        let middle = place as f64 + 0.5;
        let color = match goal.verdict(row.ratio.median) {
            Verdict::Aim => RGBColor(0, 120, 0),
            Verdict::Reached => RGBColor(70, 70, 70),
            Verdict::Missed => RED,
        };
        let mark = |at: f64, color: RGBColor| {
            PathElement::new(vec![(at, middle - 0.35), (at, middle + 0.35)], color.stroke_width(2))
        };
        let spread = vec![(row.ratio.min, middle), (row.ratio.max, middle)];
        chart.draw_series([PathElement::new(spread, color.stroke_width(3))])?;
        chart.draw_series([Circle::new((row.ratio.median, middle), 5, color.filled())])?;
        chart.draw_series([mark(goal.at_most, RED)])?;
        chart.draw_series(goal.aim.map(|aim| mark(aim, BLUE)))?;
        let name = format!("{}: {} / {} ({:.2})", row.group, row.what, row.with, row.ratio.median);
        let (_, y) = chart.backend_coord(&(0.0, middle));
        let font = ("sans-serif", NAME_SIZE).into_font().color(&color);
        area.draw(&Text::new(name, (MARGIN as i32, y - NAME_SIZE / 2), font))?;
    }
    area.present()?;
    Ok(())
}
