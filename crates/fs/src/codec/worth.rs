//! Content that is not worth trying to compress, judged by a few of its bytes.

/// How compressed files begin: position and bytes.
const COMPRESSED: [(usize, &[u8]); 27] = [
    (0, b"\x1f\x8b"),
    (0, b"\x28\xb5\x2f\xfd"),
    (0, b"\xfd7zXZ\0"),
    (0, b"BZh"),
    (0, b"PK\x03\x04"),
    (0, b"7z\xbc\xaf\x27\x1c"),
    (0, b"Rar!\x1a\x07"),
    (0, b"\x04\x22\x4d\x18"),
    (0, b"LZIP"),
    (0, b"\x5d\0\0"),
    (0, b"hsqs"),
    (0, b"\xff\xd8\xff"),
    (0, b"\x89PNG\r\n\x1a\n"),
    (0, b"GIF8"),
    (8, b"WEBP"),
    (4, b"ftyp"),
    (0, b"\x1a\x45\xdf\xa3"),
    (0, b"OggS"),
    (0, b"fLaC"),
    (0, b"ID3"),
    (0, b"\xff\xfb"),
    (0, b"wOFF"),
    (0, b"wOF2"),
    (0, b"\xff\x0a"),
    (0, b"LUKS\xba\xbe"),
    (0, b"age-encryption.org"),
    (0, b"\x85\x01\x0c"),
];

/// Bytes that are counted, in so many places.
const SAMPLED: usize = 4096;
const PLACES: usize = 16;
/// Of bytes that are all alike in number, so many have less than this: bits in each.
const ENTROPY: f64 = 7.4;

/// Is it worth trying?
pub(crate) fn is_worth(content: &[u8]) -> bool {
    !is_compressed(content) && entropy(content).is_none_or(|bits| bits < ENTROPY)
}

fn is_compressed(content: &[u8]) -> bool {
    COMPRESSED.iter().any(|(at, is)| content.get(*at..).is_some_and(|rest| rest.starts_with(is)))
}

/// Bits that each byte tells, in a sample; `None` where there are too few to say.
fn entropy(content: &[u8]) -> Option<f64> {
    if content.len() < SAMPLED {
        return None;
    }
    let (mut counts, step) = ([0u32; 256], content.len() / PLACES);
    for place in 0..PLACES {
        content[place * step..][..SAMPLED / PLACES].iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    }
    let part = |n: u32| f64::from(n) / SAMPLED as f64;
    Some(counts.iter().filter(|n| **n > 0).map(|n| -part(*n) * libm::log2(part(*n))).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compressed_or_random_is_not_tried() {
        let mut rng = rng::Rng::new(1);
        let random: Vec<u8> = (0..20_000).map(|_| rng.below(256) as u8).collect();
        let text = super::super::tests::text(&mut rng, 20_000);
        let base64: Vec<u8> = random.iter().map(|byte| b'0' + byte % 64).collect();
        assert!(!is_worth(&random) && is_worth(&text) && is_worth(&base64));
        assert!(!is_worth(&random[..SAMPLED]));
        assert!(is_worth(&random[..SAMPLED - 1]) && is_worth(b"") && is_worth(b"a"), "too short to say");
        for (at, is) in COMPRESSED {
            let mut text = text.clone();
            text[at..at + is.len()].copy_from_slice(is);
            assert!(!is_worth(&text), "{is:?}");
        }
        assert!(is_worth(b"PK") && is_worth(b"GIF"));
    }
}
