//! The picture: for the most clients, the locks per second and the wait of each contender.

use crate::Failure;
use crate::contention::Sample;
use crate::report::{Report, Scene};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::ops::Range;
use std::path::Path;

const WIDTH: u32 = 1_220;
const NAMES_WIDTH: u32 = 300;
const ROW_HEIGHT: u32 = 44;
const TITLE_HEIGHT: u32 = 40;
const AXIS_HEIGHT: u32 = 45;
const MARGIN: u32 = 12;
const NAME_SIZE: i32 = 16;
const NUMBER_SIZE: i32 = 13;
const NO_HOLD: RGBColor = RGBColor(31, 90, 160);
const HOLD: RGBColor = RGBColor(150, 190, 230);

/// A line of text on the left; one of numbers on the right; two bars on each, without and with a hold.
pub(crate) fn draw(path: &Path, report: &Report) -> Result<(), Failure> {
    let (Some(short), Some(long)) = (report.crowded(false), report.crowded(true)) else { return Ok(()) };
    let rows = report.contenders.len() as u32;
    let size = (WIDTH, TITLE_HEIGHT + AXIS_HEIGHT + 2 * MARGIN + ROW_HEIGHT * rows);
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE)?;
    let (names, charts) = area.split_horizontally(NAMES_WIDTH);
    let (left, right) = charts.split_horizontally((WIDTH - NAMES_WIDTH) / 2);
    let clients = short.clients;
    let scenes = [(short, NO_HOLD), (long, HOLD)];
    let middles = bars(&left, &format!("{clients} clients: locks per second"), scenes, Sample::rate)?;
    bars(&right, &format!("{clients} clients: longest wait within a slice, ms"), scenes, |sample| {
        sample.found.wait_max_ms
    })?;
    let font = ("sans-serif", NAME_SIZE).into_font();
    for (contender, middle) in report.contenders.iter().zip(middles) {
        names.draw(&Text::new(contender.name, (MARGIN as i32, middle - NAME_SIZE / 2), font.clone()))?;
    }
    area.present()?;
    Ok(())
}

/// Draws two bars for each contender; says how far below the top of the picture the middle of each row is.
fn bars(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    scenes: [(&Scene, RGBColor); 2],
    value: fn(&Sample) -> f64,
) -> Result<Vec<i32>, Failure> {
    let rows = scenes[0].0.samples.len();
    let values: Vec<Vec<f64>> =
        scenes.iter().map(|(scene, _)| (0..rows).map(|row| scene.median(row, value)).collect()).collect();
    let Range { start, end } = decades(values.iter().flatten().copied());
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(MARGIN)
        .x_label_area_size(AXIS_HEIGHT)
        .build_cartesian_2d((start..end).log_scale(), rows as f64..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_label_formatter(&|value| format!("{value}"))
        .label_style(("sans-serif", 13))
        .light_line_style(TRANSPARENT)
        .x_desc("dark: no hold; light: a hold of 1 ms; each line ten times as much")
        .draw()?;
    for (nth, ((_, color), values)) in scenes.iter().zip(&values).enumerate() {
        for (row, value) in values.iter().enumerate() {
            let top = row as f64 + 0.12 + 0.38 * nth as f64;
            let at = value.max(start);
            chart.draw_series([Rectangle::new([(start, top), (at, top + 0.36)], color.filled())])?;
            let (x, y) = chart.backend_coord(&(at, top + 0.18));
            let number = if *value >= 10.0 { format!("{value:.0}") } else { format!("{value:.2}") };
            let font = ("sans-serif", NUMBER_SIZE).into_font();
            // In the coordinates of the whole picture, as they are of the backend.
            let (dx, dy) = area.get_base_pixel();
            area.draw(&Text::new(number, (x - dx + 4, y - dy - NUMBER_SIZE / 2), font))?;
        }
    }
    Ok((0..rows).map(|row| chart.backend_coord(&(start, row as f64 + 0.5)).1).collect())
}

/// From the power of ten below all values to the one above, and room for a number.
fn decades(values: impl Iterator<Item = f64>) -> Range<f64> {
    let values: Vec<f64> = values.filter(|value| value.is_finite() && *value > 0.0).collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min).min(1e6);
    let most = values.iter().copied().fold(least, f64::max);
    10f64.powf(least.log10().floor())..most * 4.0
}
