//! See `checks::url`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::url::check(data));
