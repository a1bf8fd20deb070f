//! Drawings of the page. Colours are numbers that the page's style sheet replaces, so that they follow its mode.

use plotters::coord::Shift;
use plotters::prelude::*;

/// Colours, by what the style sheet makes of them.
pub(super) const MAIN: RGBColor = RGBColor(1, 1, 1);
const SECOND: RGBColor = RGBColor(2, 2, 2);
const GRID: RGBColor = RGBColor(6, 6, 6);
const INK: RGBColor = RGBColor(7, 7, 7);

/// Colours of lines, the first for what is likeliest.
const LINES: [RGBColor; 5] = [MAIN, SECOND, RGBColor(3, 3, 3), RGBColor(4, 4, 4), RGBColor(5, 5, 5)];

const WIDTH: u32 = 820;
const TEXT: (&str, i32) = ("sans-serif", 15);

/// A drawing cannot fail for any reason but a bug: it is text in memory. What it would say stands in its place.
fn drawing(
    height: u32,
    label: &str,
    draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn std::error::Error>>,
) -> String {
    let mut svg = String::new();
    let done = {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        draw(&area).and_then(|()| area.present().map_err(Into::into))
    };
    match done {
        Ok(()) => svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{label}\" "), 1),
        Err(error) => format!("<p>not drawn: {error}</p>"),
    }
}

/// A little above the largest value, or 1.
fn top(values: impl Iterator<Item = f64>) -> f64 {
    let largest = values.fold(0.0, f64::max);
    if largest > 0.0 { 1.05 * largest } else { 1.0 }
}

/// Short numbers for axes.
fn tick(value: &f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{}M", (value / 1e5).round() / 10.0),
        v if v >= 1e4 => format!("{}k", (value / 1e2).round() / 10.0),
        _ => format!("{}", (value * 100.0).round() / 100.0),
    }
}

macro_rules! mesh {
    ($chart:expr, $x:expr, $y:expr) => {
        $chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID.mix(0.6))
            .axis_style(GRID)
            .label_style(TEXT)
            .axis_desc_style(TEXT)
            .x_label_formatter(&tick)
            .y_label_formatter(&tick)
            .x_desc($x)
            .y_desc($y)
            .draw()?
    };
}

/// Rates against concurrency: measured points, the likeliest explanation with its band, and rival lines.
pub(super) fn rates(measured: &[(f64, f64)], band: &[(f64, f64, f64)], lines: &[Vec<(f64, f64)>]) -> String {
    drawing(380, "rate against concurrency", |area| {
        let x = top(measured.iter().map(|point| point.0));
        let highest = lines.iter().flatten().map(|point| point.1).chain(measured.iter().map(|point| point.1));
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(48)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..x, 0.0..top(highest))?;
        mesh!(chart, "requests in flight on one GPU", "tok/s");
        let edge = band.iter().map(|(x, low, _)| (*x, *low)).chain(band.iter().rev().map(|(x, _, high)| (*x, *high)));
        chart.draw_series(std::iter::once(Polygon::new(edge.collect::<Vec<_>>(), MAIN.mix(0.3))))?;
        for (line, colour) in lines.iter().zip(LINES).rev() {
            chart.draw_series(LineSeries::new(line.iter().copied(), colour.stroke_width(2)))?;
        }
        chart.draw_series(measured.iter().map(|point| Circle::new(*point, 5, INK.filled())))?;
        Ok(())
    })
}

/// Lying bars with their names, from `start` to `end` each.
pub(super) fn bars(label: &str, unit: &str, bars: &[(String, f64, f64)]) -> String {
    let rows = bars.len();
    drawing(70 + 30 * rows as u32, label, |area| {
        let longest = bars.iter().map(|bar| bar.0.chars().count()).max().unwrap_or(0) as u32;
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size((14 + 8 * longest).min(WIDTH / 2))
            .build_cartesian_2d(0.0..top(bars.iter().flat_map(|bar| [bar.1, bar.2])), (0..rows).into_segmented())?;
        let name = |place: &SegmentValue<usize>| match place {
            SegmentValue::CenterOf(row) => {
                bars.get(rows - 1 - row.min(&(rows - 1))).map_or(String::new(), |bar| bar.0.clone())
            }
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID.mix(0.6))
            .axis_style(GRID)
            .label_style(TEXT)
            .axis_desc_style(TEXT)
            .x_label_formatter(&tick)
            .y_labels(rows)
            .y_label_formatter(&name)
            .x_desc(unit)
            .draw()?;
        chart.draw_series(bars.iter().enumerate().map(|(place, (_, start, end))| {
            let row = rows - 1 - place;
            let colour = if end < start {
                LINES[2]
            } else if *start > 0.0 {
                SECOND
            } else {
                MAIN
            };
            let mut bar = Rectangle::new(
                [(*start, SegmentValue::Exact(row)), (*end, SegmentValue::Exact(row + 1))],
                colour.mix(0.85).filled(),
            );
            bar.set_margin(5, 5, 0, 0);
            bar
        }))?;
        Ok(())
    })
}

/// Cells of a histogram.
const CELLS: usize = 28;

/// How often each completion time occurs, with marks at some of them.
pub(super) fn distribution(days: &[f64], quantiles: &[f64], deadline: Option<f64>) -> String {
    drawing(320, "distribution of the completion time", |area| {
        let low = days.iter().copied().chain(deadline).fold(f64::INFINITY, f64::min);
        let high = days.iter().copied().chain(deadline).fold(0.0, f64::max);
        let (low, high) = (0.97 * low, 1.03 * high);
        let width = (high - low) / CELLS as f64;
        let mut cells = vec![0u32; CELLS];
        for day in days {
            cells[(((day - low) / width) as usize).min(CELLS - 1)] += 1;
        }
        let share = |count: u32| 100.0 * f64::from(count) / days.len().max(1) as f64;
        let height = top(cells.iter().map(|count| share(*count)));
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(48)
            .y_label_area_size(56)
            .build_cartesian_2d(low..high, 0.0..height)?;
        mesh!(chart, "days", "% of the replications");
        chart.draw_series(cells.iter().enumerate().map(|(place, count)| {
            let left = low + place as f64 * width;
            Rectangle::new([(left, 0.0), (left + 0.96 * width, share(*count))], MAIN.mix(0.8).filled())
        }))?;
        let marks = quantiles.iter().map(|day| (*day, INK)).chain(deadline.map(|day| (day, SECOND)));
        for (day, colour) in marks {
            chart.draw_series(LineSeries::new([(day, 0.0), (day, height)], colour.stroke_width(2)))?;
        }
        Ok(())
    })
}

/// An option in the plane of time and what is kept.
pub(super) struct Spot {
    /// The letter beside it.
    pub letter: String,
    /// 5, 50 and 95% quantiles of the days.
    pub days: [f64; 3],
    /// What it keeps.
    pub kept: f64,
    /// Whether another option is better.
    pub beaten: bool,
}

/// Options: time against what is kept.
pub(super) fn frontier(spots: &[Spot], deadline: Option<f64>, kept: &str) -> String {
    drawing(400, "options: days against what is kept", |area| {
        let right = top(spots.iter().map(|spot| spot.days[2]).chain(deadline));
        let height = 1.05 * top(spots.iter().map(|spot| spot.kept));
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..right, 0.0..height)?;
        mesh!(chart, "days: median, and 90% between", kept);
        let colour = |spot: &Spot| if spot.beaten { SECOND } else { MAIN };
        for spot in spots {
            let ends = [(spot.days[0], spot.kept), (spot.days[2], spot.kept)];
            chart.draw_series(LineSeries::new(ends, colour(spot).mix(0.45).stroke_width(2)))?;
        }
        chart.draw_series(spots.iter().map(|spot| Circle::new((spot.days[1], spot.kept), 5, colour(spot).filled())))?;
        // Letters of options that keep the same stand above and below the line in turn.
        chart.draw_series(spots.iter().enumerate().map(|(place, spot)| {
            let lift = if place % 2 == 0 { 0.055 } else { -0.02 } * height;
            Text::new(spot.letter.clone(), (spot.days[1] - 0.006 * right, spot.kept + lift), ("sans-serif", 17))
        }))?;
        if let Some(day) = deadline {
            chart.draw_series(LineSeries::new([(day, 0.0), (day, height)], INK.stroke_width(2)))?;
        }
        Ok(())
    })
}

/// Requests that still run before the end.
pub(super) fn drain(points: &[(f64, f64)]) -> String {
    drawing(280, "requests still running before the end", |area| {
        let longest = top(points.iter().map(|point| point.0));
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(48)
            .y_label_area_size(56)
            .build_cartesian_2d(-longest..0.0, 0.0..top(points.iter().map(|point| point.1)))?;
        mesh!(chart, "seconds before the end", "running");
        let steps = points.windows(2).flat_map(|pair| [(-pair[0].0, pair[0].1), (-pair[1].0, pair[0].1)]);
        let last = points.last().map(|point| (-point.0, point.1));
        chart.draw_series(LineSeries::new(steps.chain(last), MAIN.stroke_width(2)))?;
        Ok(())
    })
}
