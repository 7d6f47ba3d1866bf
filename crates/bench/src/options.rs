//! Declares the options of workloads: a line for each, from which [`options`] makes the parser of the command line.

use clap::builder::{PossibleValue, PossibleValuesParser};

/// A part of a workload: its name for `--only`, its subject, and its function.
pub type Part<T> = (&'static str, &'static str, T);

/// Makes a struct of options: `name: KIND = DEFAULT, "help";` each. A kind with a value is followed by the value's name.
macro_rules! options {
    ($name:ident { $($fields:tt)* }) => { options! { @ $name {} $($fields)* } };
    (@ $name:ident {$($done:tt)*}) => {
        #[derive(Clone, Debug, clap::Args)]
        pub struct $name { $($done)* }
    };
    (@ $name:ident {$($done:tt)*} grounds; $($rest:tt)*) => {
        options! { @ $name {$($done)* #[command(flatten)] pub grounds: $crate::setting::Grounds,} $($rest)* }
    };
    (@ $name:ident {$($done:tt)*} $field:ident: count $value:literal = $default:literal, $help:literal; $($rest:tt)*) => {
        options! { @ $name {$($done)* #[arg(long, help = $help, value_name = $value, default_value_t = $default,
            value_parser = $crate::options::at_least_one)] pub $field: usize,} $($rest)* }
    };
    (@ $name:ident {$($done:tt)*} $field:ident: counts $value:literal = $default:tt, $help:literal; $($rest:tt)*) => {
        options! { @ $name {$($done)* #[arg(long, help = $help, value_name = $value, value_delimiter = ',',
            default_values_t = $default, value_parser = $crate::options::at_least_one)] pub $field: Vec<usize>,} $($rest)* }
    };
    (@ $name:ident {$($done:tt)*} $field:ident: real $value:literal = $default:literal, $help:literal; $($rest:tt)*) => {
        options! { @ $name {$($done)* #[arg(long, help = $help, value_name = $value, default_value_t = $default)]
            pub $field: f64,} $($rest)* }
    };
    (@ $name:ident {$($done:tt)*} $field:ident: reals $value:literal = $default:tt, $help:literal; $($rest:tt)*) => {
        options! { @ $name {$($done)* #[arg(long, help = $help, value_name = $value, value_delimiter = ',',
            default_values_t = $default)] pub $field: Vec<f64>,} $($rest)* }
    };
    (@ $name:ident {$($done:tt)*} $field:ident: dir, $help:literal; $($rest:tt)*) => {
        options! { @ $name {$($done)* #[arg(long, help = $help, value_name = "DIR")]
            pub $field: Option<std::path::PathBuf>,} $($rest)* }
    };
    (@ $name:ident {$($done:tt)*} $field:ident: dir = $default:literal, $help:literal; $($rest:tt)*) => {
        options! { @ $name {$($done)* #[arg(long, help = $help, value_name = "DIR", default_value = $default)]
            pub $field: std::path::PathBuf,} $($rest)* }
    };
    (@ $name:ident {$($done:tt)*} only: $value:literal of $parts:expr, $help:literal; $($rest:tt)*) => {
        options! { @ $name {$($done)* #[arg(long, help = $help, value_name = $value, value_delimiter = ',',
            value_parser = $crate::options::names($parts))] pub only: Vec<String>,} $($rest)* }
    };
    (@ $name:ident {$($done:tt)*} {$($field:tt)*} $($rest:tt)*) => {
        options! { @ $name {$($done)* $($field)*,} $($rest)* }
    };
}
pub(crate) use options;

pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.replace('_', "").parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(n) => Ok(n),
        Err(e) => Err(format!("{e}")),
    }
}

/// The names of parts, for the parser and the help of the command line.
pub fn names<T>(parts: &[Part<T>]) -> PossibleValuesParser {
    let name = |(name, about, _): &Part<T>| match *about {
        "" => PossibleValue::new(*name),
        about => PossibleValue::new(*name).help(about),
    };
    PossibleValuesParser::new(parts.iter().map(name).collect::<Vec<_>>())
}

/// The requested parts; all, if none is named.
pub fn wanted<'a, T>(parts: &'a [Part<T>], only: &'a [String]) -> impl Iterator<Item = &'a Part<T>> {
    parts.iter().filter(move |(name, ..)| only.is_empty() || only.iter().any(|only| only == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_zero_are_refused() {
        assert!(at_least_one("0").is_err());
        assert!(at_least_one("-1").is_err());
        assert_eq!(at_least_one("30_000"), Ok(30_000));
    }
}
