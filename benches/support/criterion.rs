//! What criterion has just measured, read back from where it keeps it.

use std::{error::Error, fs};

/// The median time of one iteration, in nanoseconds.
pub fn median_nanos(group: &str, function: &str) -> Result<f64, Box<dyn Error>> {
    let path = format!("target/criterion/{group}/{function}/new/estimates.json");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let estimates: serde_json::Value = serde_json::from_str(&text)?;
    let median = &estimates["median"]["point_estimate"];
    median.as_f64().ok_or_else(|| format!("{path}: no median").into())
}
