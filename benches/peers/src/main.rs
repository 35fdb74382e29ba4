//! quorlock beside other lock libraries: the same servers, the same work, in turns.
//!
//! `cargo run --release --manifest-path benches/peers/Cargo.toml -- [latency|callers|hand-over]… [scale=N]`, from the
//! root of the checkout. Each library runs in a process of its own that measures itself and is told what to do over
//! its standard input: so a library that hangs can be ended, each one's CPU is known, and those of other
//! languages take part. `scripts/peers.sh` installs the latter; what is not there is left out, and said to be.
//!
//! `scale` is in percent; 100, the default, takes some eight minutes.

mod callers;
mod child;
mod clients;
mod hand_over;
mod latency;
mod peer;
#[path = "../../../tests/support/proxy.rs"]
#[allow(dead_code)]
mod proxy;
#[path = "../../support/report.rs"]
#[allow(dead_code)]
mod report;
#[path = "../../support/samples.rs"]
#[allow(dead_code)]
mod samples;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [child, kind, urls] = &args[..]
        && child == "child"
    {
        let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
        return child::serve(clients::connect(kind, &urls)?);
    }
    let (mut parts, mut scale) = (Vec::new(), 100);
    for arg in &args {
        match arg.strip_prefix("scale=") {
            Some(percent) => scale = percent.parse()?,
            None => parts.push(arg.as_str()),
        }
    }
    let runs = |part: &str| parts.is_empty() || parts.contains(&part);
    if runs("latency") {
        latency::measure(scale)?;
    }
    if runs("callers") {
        callers::measure(scale)?;
    }
    if runs("hand-over") {
        hand_over::measure(scale)?;
    }
    Ok(())
}
