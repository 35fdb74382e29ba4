//! A benchmark's part of BENCHMARKS.md: printed as it is measured, and kept under target/bench for
//! `scripts/bench.sh` to put together.

use std::{error::Error, fmt::Display, fmt::Write, fs, path::Path};

use plotters::prelude::*;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Text and tables in Markdown, and plots.
#[derive(Debug)]
pub struct Section {
    name: String,
    text: String,
}

/// Lines over a logarithmic x axis.
#[derive(Debug)]
pub struct Plot<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    pub lines: &'a [(String, Vec<(f64, f64)>)],
}

impl Section {
    /// `name` is the file's, `question` the heading, `command` what measures it again.
    pub fn new(name: &str, question: &str, command: &str) -> Self {
        let mut section = Self { name: name.into(), text: String::new() };
        section.say(format!("## {question}\n\n`{command}`"));
        section
    }

    /// A paragraph.
    pub fn say(&mut self, text: impl Display) {
        println!("{text}\n");
        let _ = writeln!(self.text, "{text}\n");
    }

    /// The first column is left-aligned, the others are figures.
    pub fn table(&mut self, columns: &[&str], rows: &[Vec<String>]) {
        let width = |i: usize| {
            let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count());
            cells.chain([columns[i].chars().count(), 3]).max().unwrap_or(3)
        };
        let line = |cells: Vec<&str>| {
            let pad = |(i, cell): (usize, &str)| {
                let width = width(i);
                if i == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            };
            let cells: Vec<_> = cells.into_iter().enumerate().map(pad).collect();
            format!("| {} |", cells.join(" | "))
        };
        let rule = |(i, _)| match i {
            0 => "-".repeat(width(i)),
            _ => format!("{}:", "-".repeat(width(i) - 1)),
        };
        let rules: Vec<String> = columns.iter().enumerate().map(rule).collect();
        let mut lines = vec![line(columns.to_vec()), line(rules.iter().map(|r| &**r).collect())];
        lines.extend(rows.iter().map(|row| line(row.iter().map(|cell| &**cell).collect())));
        self.say(lines.join("\n"));
    }

    /// Drawn to docs/bench, with a link to it.
    pub fn plot(&mut self, name: &str, plot: &Plot<'_>) -> Result<()> {
        let path = format!("docs/bench/{name}.svg");
        fs::create_dir_all("docs/bench")?;
        plot.draw(Path::new(&path))?;
        self.say(format!("![{}]({path})", plot.title));
        Ok(())
    }

    /// Keeps it for BENCHMARKS.md.
    pub fn finish(self) -> Result<()> {
        fs::create_dir_all("target/bench")?;
        fs::write(format!("target/bench/{}.md", self.name), self.text)?;
        Ok(())
    }
}

impl Plot<'_> {
    fn draw(&self, path: &Path) -> Result<()> {
        let points = || self.lines.iter().flat_map(|(_, line)| line);
        let bounds = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)))
        };
        let (left, right) = bounds(&mut points().map(|point| point.0));
        let (_, top) = bounds(&mut points().map(|point| point.1));
        let area = SVGBackend::new(path, (760, 420)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            // The names of the lines stand to the right of them.
            .build_cartesian_2d(
                (left..right * (right / left).powf(0.6)).log_scale(),
                0.0..top * 1.05,
            )?;
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .x_labels(6)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| format!("{y:.0}"))
            .light_line_style(WHITE)
            .draw()?;
        for (i, (name, line)) in self.lines.iter().enumerate() {
            let color = Palette99::pick(i).to_rgba();
            let style = color.stroke_width(2);
            chart
                .draw_series(LineSeries::new(line.iter().copied(), style))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::MiddleRight)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        area.present()?;
        Ok(())
    }
}
