//! The text of an SVG: shapes on a light card, so that it is readable on light and on dark pages.

use std::fmt::Write;

/// Colours that people with any kind of colour vision tell apart (Okabe and Ito), without the yellow, which is too light
/// for lines.
pub const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9"];
/// Whiskers.
pub const DARK: &str = "#24292f";
/// Bars and lines that are there for comparison.
pub const GREY: &str = "#9aa3ad";
pub const PALE: &str = "#d0d7de";

const HEAD: &str = "<style>text{font-family:sans-serif;font-size:12px;fill:#24292f}.h{font-size:14px;font-weight:600}\
                    .s{font-size:11px;fill:#57606a}.g{stroke:#d8dee4}.a{stroke:#8c959f}</style>";

/// The side of a text at which its place is.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

pub type Point = (f64, f64);

/// An SVG in the making. Places are in pixels from the upper left corner.
#[derive(Default)]
pub struct Svg(String);

impl Svg {
    /// `class`: `h` for a heading, `s` for small print, nothing otherwise.
    pub fn text(&mut self, (x, y): Point, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = writeln!(self.0, "<text x=\"{x:.1}\" y=\"{y:.1}\"{anchor}{class}>{text}</text>");
    }

    /// A line of a class: `g` for the grid, `a` for an axis.
    pub fn rule(&mut self, from: Point, to: Point, class: &str) {
        self.segment(from, to, &format!("class=\"{class}\""));
    }

    pub fn stroke(&mut self, from: Point, to: Point, colour: &str) {
        self.segment(from, to, &format!("stroke=\"{colour}\""));
    }

    fn segment(&mut self, (x1, y1): Point, (x2, y2): Point, how: &str) {
        let _ = writeln!(self.0, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {how}/>");
    }

    pub fn bar(&mut self, (x, y): Point, width: f64, height: f64, colour: &str) {
        let _ = writeln!(
            self.0,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
        );
    }

    pub fn dot(&mut self, (x, y): Point, colour: &str) {
        let _ = writeln!(self.0, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>");
    }

    pub fn path(&mut self, points: &[Point], colour: &str, width: f64) {
        let points = places(points);
        let _ = writeln!(
            self.0,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
        );
    }

    /// An area behind a line.
    pub fn band(&mut self, outline: &[Point], colour: &str) {
        let _ = writeln!(self.0, "<polygon points=\"{}\" fill=\"{colour}\" fill-opacity=\"0.2\"/>", places(outline));
    }

    /// A whisker with caps between two places of one row or one column.
    pub fn whisker(&mut self, from: Point, to: Point, colour: &str) {
        const CAP: f64 = 3.0;
        self.stroke(from, to, colour);
        let (x, y) = if from.1 == to.1 { (0.0, CAP) } else { (CAP, 0.0) };
        for end in [from, to] {
            self.stroke((end.0 - x, end.1 - y), (end.0 + x, end.1 + y), colour);
        }
    }

    /// The whole file.
    pub fn finish(self, width: f64, height: f64) -> String {
        let (w, h) = (width - 1.0, height - 1.0);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\">\n{HEAD}\n<rect x=\"0.5\" y=\"0.5\" width=\"{w:.0}\" height=\"{h:.0}\" rx=\"8\" \
             fill=\"#ffffff\" stroke=\"#d0d7de\"/>\n{}</svg>\n",
            self.0
        )
    }
}

fn places(points: &[Point]) -> String {
    let places: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    places.join(" ")
}
