//! Charts over the steps of a run, as shapes for the page to draw.

use std::fmt::Write as _;

use serde::Serialize;

use super::scale::{Scale, Tick, rounded};
use super::series::Series;

/// A line, or a polygon between the lowest and the highest values.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Shape {
    /// Its name, for programs that read the page.
    pub name: String,
    /// The number of its colour.
    pub colour: usize,
    /// The path.
    pub d: String,
    /// Whether its area is filled.
    pub filled: bool,
    /// The number of values that it shows.
    pub count: u64,
    /// The last, the lowest and the highest value.
    pub last: String,
    /// See [`Shape::last`].
    pub low: String,
    /// See [`Shape::last`].
    pub high: String,
}

/// A marked value and its standard error.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mark {
    /// Its horizontal position.
    pub x: f64,
    /// Its vertical position.
    pub y: f64,
    /// The vertical positions of the value plus and minus its standard error.
    pub bar: Option<[f64; 2]>,
    /// The number of its colour.
    pub colour: usize,
    /// Its step.
    pub step: u64,
    /// The value, as the run wrote it.
    pub value: String,
    /// The standard error, as the run wrote it.
    pub error: Option<String>,
    /// Its description.
    pub title: String,
}

/// A horizontal line at a value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReferenceLine {
    /// Its vertical position.
    pub y: f64,
    /// The vertical position of its name.
    pub label_y: f64,
    /// Its name.
    pub label: String,
    /// Its value.
    pub value: String,
    /// The vertical positions of an interval around the value, if it has one.
    pub between: Option<[f64; 2]>,
}

/// An entry of the legend.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// The number of its colour.
    pub colour: usize,
    /// Its name.
    pub label: String,
    /// Whether it describes points rather than a line.
    pub point: bool,
}

/// A chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chart {
    /// Its name within the page.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// The same as a sentence, with the most important numbers.
    pub desc: String,
    /// Its size.
    pub width: f64,
    /// See [`Chart::width`].
    pub height: f64,
    /// The edges of the plot area.
    pub left: f64,
    /// See [`Chart::left`].
    pub right: f64,
    /// See [`Chart::left`].
    pub top: f64,
    /// See [`Chart::left`].
    pub bottom: f64,
    /// Labelled steps.
    pub across: Vec<Tick>,
    /// Labelled values.
    pub up: Vec<Tick>,
    /// The ranges of the values, drawn behind their lines.
    pub bands: Vec<Shape>,
    /// Lines.
    pub lines: Vec<Shape>,
    /// Marked values.
    pub marks: Vec<Mark>,
    /// Values that apply to the whole run.
    pub rules: Vec<ReferenceLine>,
    /// The names of the lines, if there are several.
    pub legend: Vec<Entry>,
}

/// The size of a chart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Size {
    width: f64,
    height: f64,
    /// Width reserved for the names of rules.
    right: f64,
    ticks: [usize; 2],
}

impl Size {
    /// As wide as the page.
    pub const LARGE: Size = Size { width: 900.0, height: 320.0, right: 128.0, ticks: [8, 6] };
    /// Half of the page's width, for two charts side by side.
    pub const SMALL: Size = Size { width: 440.0, height: 200.0, right: 20.0, ticks: [5, 5] };
}

/// How a curve is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A smoothed line in front of the range of the values.
    Smoothed,
    /// The means of the buckets in front of the range of the values.
    Means,
    /// The means of the buckets alone: with several curves in a chart their ranges would hide each other.
    Alone,
}

/// Values over steps.
pub struct Curve<'a> {
    /// Its name.
    pub name: &'a str,
    /// The number of its colour.
    pub colour: usize,
    /// Its values.
    pub series: &'a Series,
    /// How the curve is drawn.
    pub style: Style,
}

/// A value to be marked.
#[derive(Debug, Clone, PartialEq)]
pub struct Marked {
    /// Its step.
    pub step: u64,
    /// The value.
    pub value: f64,
    /// Its standard error.
    pub error: Option<f64>,
    /// The number of its colour.
    pub colour: usize,
    /// Its description.
    pub title: String,
}

/// A value that applies to the whole run.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// Its name.
    pub label: String,
    /// The value.
    pub value: f64,
    /// The interval in which the value probably lies.
    pub between: Option<[f64; 2]>,
}

/// The content of a chart.
pub struct Drawing<'a> {
    /// Its name within the page.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// The same as a sentence.
    pub desc: String,
    /// Its size.
    pub size: Size,
    /// Its lines.
    pub curves: Vec<Curve<'a>>,
    /// Marked values.
    pub marked: Vec<Marked>,
    /// The meaning of the marks of each colour.
    pub mark_names: Vec<(usize, &'static str)>,
    /// Values that apply to the whole run.
    pub levels: Vec<Level>,
    /// Whether the axis begins at 0.
    pub from_zero: bool,
    /// The axis is logarithmic if the ratio of the highest to the lowest value is at least this.
    pub log_from: f64,
}

impl Style {
    /// Whether a curve of `series` has a band for the range of its values: with one value a bucket the line shows them
    /// already.
    fn has_band(self, series: &Series) -> bool {
        match self {
            Style::Smoothed => true,
            Style::Means => series.buckets().any(|bucket| bucket.count > 1),
            Style::Alone => false,
        }
    }
}

/// Least distance between the names of rules.
const LINE: f64 = 13.0;

impl Drawing<'_> {
    /// Lays out the chart; `None` if it has no values.
    pub fn chart(self) -> Option<Chart> {
        let Size { width, height, right, ticks } = self.size;
        let (left, right) = (56.0, width - if self.levels.is_empty() { 20.0 } else { right });
        let (top, bottom) = (8.0, height - 26.0);
        let ranges = self.curves.iter().filter_map(|curve| curve.series.range());
        let marks = self.marked.iter().map(|mark| {
            let error = mark.error.unwrap_or(0.0);
            [mark.value - error, mark.value + error]
        });
        let levels = self.levels.iter().map(|level| [level.value; 2]);
        let [low, high] = ranges.chain(marks).chain(levels).reduce(|[a, b], [c, d]| [a.min(c), b.max(d)])?;
        let log = low > 0.0 && high / low >= self.log_from;
        let low = if self.from_zero && !log { low.min(0.0) } else { low };
        // A margin, so that no line lies on the frame.
        let room = 0.04 * (high - low);
        let values = match log {
            true => [low / (high / low).powf(0.04), high * (high / low).powf(0.04)],
            false => [if self.from_zero && low == 0.0 { 0.0 } else { low - room }, high + room],
        };
        let up = Scale::new(values, [bottom, top], log);
        let stepped =
            self.curves.iter().filter_map(|curve| curve.series.buckets().last()).map(|bucket| bucket.steps[1]);
        let end = stepped.chain(self.marked.iter().map(|mark| mark.step)).max()?.max(1);
        let across = Scale::new([0.0, end as f64], [left, right], false);
        let curves = self.curves.iter().filter(|curve| !curve.series.is_empty());
        let bands = curves
            .clone()
            .filter(|curve| curve.style.has_band(curve.series))
            .map(|curve| band(curve, &across, &up))
            .collect();
        let lines = curves.map(|curve| line(curve, &across, &up)).collect();
        let mark = |mark: Marked| Mark {
            x: across.at(mark.step as f64),
            y: up.at(mark.value),
            bar: mark.error.map(|error| [up.at(mark.value + error), up.at((mark.value - error).max(values[0]))]),
            colour: mark.colour,
            step: mark.step,
            value: mark.value.to_string(),
            error: mark.error.map(|error| error.to_string()),
            title: mark.title,
        };
        let entry = |curve: &Curve<'_>| Entry { colour: curve.colour, label: curve.name.to_owned(), point: false };
        let named = |(colour, name): &(usize, &str)| Entry { colour: *colour, label: (*name).to_owned(), point: true };
        let several = self.curves.len() + self.mark_names.len() > 1;
        let entries = self.curves.iter().map(entry).chain(self.mark_names.iter().map(named));
        let legend = entries.filter(|_| several).collect();
        Some(Chart {
            id: self.id,
            title: self.title,
            desc: self.desc,
            width,
            height,
            left,
            right,
            top,
            bottom,
            across: across.ticks(ticks[0]),
            up: up.ticks(ticks[1]),
            bands,
            lines,
            marks: self.marked.into_iter().map(mark).collect(),
            rules: rules(self.levels, &up, [top, bottom]),
            legend,
        })
    }
}

/// Horizontal lines, with their names one below the other.
fn rules(mut levels: Vec<Level>, up: &Scale, [top, bottom]: [f64; 2]) -> Vec<ReferenceLine> {
    levels.sort_by(|a, b| b.value.total_cmp(&a.value));
    let mut rules: Vec<ReferenceLine> = Vec::new();
    for level in levels {
        let y = up.at(level.value);
        let above = rules.last().map_or(top - LINE + 4.0, |rule| rule.label_y);
        let between = level.between.map(|[low, high]| [up.at(high).clamp(top, bottom), up.at(low).clamp(top, bottom)]);
        let (label_y, value) = ((y + 4.0).max(above + LINE), level.value.to_string());
        rules.push(ReferenceLine { y, label_y, label: level.label, value, between });
    }
    // Names that were pushed below the frame move up again, and push up the names above them.
    let mut lowest = bottom + 4.0;
    for rule in rules.iter_mut().rev() {
        rule.label_y = rounded(rule.label_y.min(lowest));
        lowest = rule.label_y - LINE;
    }
    rules
}

fn shape(curve: &Curve<'_>, d: String) -> Shape {
    let [low, high] = curve.series.range().unwrap_or_default();
    Shape {
        name: curve.name.to_owned(),
        colour: curve.colour,
        d,
        filled: false,
        count: curve.series.count(),
        last: curve.series.last.map_or(String::new(), |(_, value)| value.to_string()),
        low: low.to_string(),
        high: high.to_string(),
    }
}

/// The curve's line.
fn line(curve: &Curve<'_>, across: &Scale, up: &Scale) -> Shape {
    let points = match curve.style {
        Style::Smoothed => curve.series.smoothed(),
        Style::Means | Style::Alone => curve.series.means(),
    };
    shape(curve, path(points.into_iter(), across, up))
}

/// The range of the values as a polygon; with one value a bucket, the values as a line.
fn band(curve: &Curve<'_>, across: &Scale, up: &Scale) -> Shape {
    if curve.series.buckets().all(|bucket| bucket.count == 1) {
        return shape(curve, path(curve.series.points().into_iter(), across, up));
    }
    let above = curve.series.buckets().map(|bucket| (bucket.high.0 as f64, bucket.high.1));
    let below: Vec<_> = curve.series.buckets().map(|bucket| (bucket.low.0 as f64, bucket.low.1)).collect();
    let polygon = path(above.chain(below.into_iter().rev()), across, up) + "Z";
    Shape { filled: true, ..shape(curve, polygon) }
}

/// A path through points, to a tenth of a pixel. One point becomes a dot, drawn by the round end of a line.
fn path(points: impl Iterator<Item = (f64, f64)>, across: &Scale, up: &Scale) -> String {
    let mut d = String::new();
    let mut count = 0;
    for (x, y) in points {
        let tenth = |place: f64| (place * 10.0).round() / 10.0;
        let _ = write!(d, "{}{} {}", if count == 0 { "M" } else { "L" }, tenth(across.at(x)), tenth(up.at(y)));
        count += 1;
    }
    if count == 1 {
        d.push_str("h0.1");
    }
    d
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        let mut series = Series::new(400);
        (1..).zip(values).for_each(|(step, value)| series.add(step, Some(*value)));
        series
    }

    fn drawing<'a>(series: &'a Series, levels: Vec<Level>) -> Drawing<'a> {
        Drawing {
            id: "loss".to_owned(),
            title: String::new(),
            desc: String::new(),
            size: Size::LARGE,
            curves: vec![Curve { name: "loss", colour: 0, series, style: Style::Smoothed }],
            marked: vec![Marked { step: 3, value: 2.0, error: Some(0.5), colour: 0, title: String::new() }],
            mark_names: Vec::new(),
            levels,
            from_zero: false,
            log_from: 4.0,
        }
    }

    fn level(value: f64) -> Level {
        Level { label: value.to_string(), value, between: None }
    }

    #[test]
    fn everything_lies_in_the_frame() {
        let values = series(&[6.0, 4.0, 2.5, 2.0]);
        let chart = drawing(&values, vec![level(1.9), level(6.5)]).chart().unwrap();
        let inside = |y: f64| (chart.top..=chart.bottom).contains(&y);
        assert!(chart.rules.iter().all(|rule| inside(rule.y)), "{chart:?}");
        assert!(chart.up.iter().all(|tick| inside(tick.at)) && chart.up.len() >= 3, "{chart:?}");
        let mark = &chart.marks[0];
        assert!(inside(mark.y) && mark.bar.unwrap().into_iter().all(inside), "{mark:?}");
        assert_eq!((&*mark.value, mark.error.as_deref()), ("2", Some("0.5")));
        let line = &chart.lines[0];
        assert_eq!((line.count, &*line.last, &*line.low, &*line.high), (4, "2", "2", "6"));
        assert_eq!(line.d.matches('L').count(), 3, "{}", line.d);
        // Buckets of one value have no area, buckets of several have one.
        assert!(!chart.bands[0].filled && chart.bands[0].d == line.d);
        // The line already shows all values; with several curves the bands would hide each other.
        assert!(!Style::Means.has_band(&values) && Style::Means.has_band(&values.within(2)));
        assert!(!Style::Alone.has_band(&values.within(2)));
        let many: Vec<f64> = (1..=1000).map(|n| 1.0 + f64::from(n % 5)).collect();
        let (many, fewer) = (series(&many), series(&many).within(10));
        assert!(!many.is_empty() && drawing(&fewer, Vec::new()).chart().unwrap().bands[0].filled);
        assert!(drawing(&Series::new(4), Vec::new()).chart().unwrap().lines.is_empty());
    }

    #[test]
    fn names_of_rules_do_not_overlap() {
        let values = series(&[6.0, 2.0]);
        // Levels close to one another at the bottom, and at the top.
        for levels in [[1.0, 1.01, 1.02, 1.03, 5.9], [6.0, 5.99, 5.98, 5.97, 1.0]] {
            let chart = drawing(&values, levels.map(level).to_vec()).chart().unwrap();
            let places: Vec<f64> = chart.rules.iter().map(|rule| rule.label_y).collect();
            assert!(places.windows(2).all(|two| two[1] - two[0] >= LINE - 0.01), "{places:?}");
            assert!(places.iter().all(|y| (chart.top..=chart.bottom + 5.0).contains(y)), "{places:?}");
        }
    }
}
