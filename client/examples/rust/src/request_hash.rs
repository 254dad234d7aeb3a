//! The request hash, the same in every language.

use sha2::{Digest, Sha256};

const VERSION: &[u8] = b"idempotency.request.v1";

/// SHA-256 over a version and the parts, each preceded by its length as 8
/// bytes, big-endian. Of an HTTP request: method, target, content type and
/// body, as they came. Nothing is normalised.
pub fn request_hash(parts: &[&[u8]]) -> Vec<u8> {
    let mut digest = Sha256::new();
    for part in [VERSION].iter().chain(parts) {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().to_vec()
}

/// How many examples of tests/vectors/request_hash.tsv hold; an error names the
/// first that does not. A part is written in hex; `hex*n` is n times those bytes.
pub fn check_vectors(path: &str) -> Result<usize, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let rows: Vec<&str> = text.lines().skip(1).collect();
    for row in &rows {
        let columns: Vec<&str> = row.split('\t').collect(); // name, count, parts, digest
        let parts = match columns[1] {
            "0" => Vec::new(),
            _ => columns[2]
                .split(',')
                .map(parse_part)
                .collect::<Option<_>>()
                .ok_or(format!("{}: cannot be read", columns[0]))?,
        };
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        if Some(request_hash(&parts)) != parse_part(columns[3]) {
            return Err(format!("{}: the request hash is another one", columns[0]));
        }
    }
    Ok(rows.len())
}

fn parse_part(written: &str) -> Option<Vec<u8>> {
    let (hex, times) = written.split_once('*').unwrap_or((written, "1"));
    let bytes: Option<Vec<u8>> = (0..hex.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(hex.get(i..i + 2)?, 16).ok())
        .collect();
    Some(bytes?.repeat(times.parse().ok()?))
}
