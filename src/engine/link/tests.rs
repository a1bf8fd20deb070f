use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::model::hardware::Hardware;

const MIB: u64 = 1 << 20;

/// Rows of a measured table, by column name.
fn table(name: &str) -> Vec<HashMap<String, String>> {
    let file = format!("{}/traces/measured/h200/{name}.csv", env!("CARGO_MANIFEST_DIR"));
    csv::Reader::from_path(file).unwrap().deserialize().map(|row| row.unwrap()).collect()
}

fn number(row: &HashMap<String, String>, key: &str) -> Option<f64> {
    row[key].parse().ok()
}

fn h200() -> LinkSettings {
    let hardware = Hardware::find("h200").unwrap();
    LinkSettings::new(&hardware.host_link, hardware.hbm_bytes_per_s, Copier::CopyEngine, false)
}

/// The host of `pcie-two-gpus`: what its root lets through. To the device, both ways busy, 61 GB/s is what makes a
/// stream that is alone for its last part (54 GB/s) average the 36.5 GB/s of the table.
const TWO_GPU_ROOT: Rates = Rates { alone: [107_000_000_000, 108_000_000_000], both: [61_000_000_000, 98_000_000_000] };

fn close(found: f64, measured: f64, slack: f64, what: &str) {
    assert!((found / measured - 1.0).abs() <= slack, "{what}: {found} against {measured}");
}

/// Runs to the end and returns what ended.
fn drain(links: &mut HostLinks) -> Vec<Finished> {
    let mut all = Vec::new();
    while let Some(end) = links.next_end() {
        all.extend(links.advance(end));
    }
    all
}

fn gb_s(finished: &Finished) -> f64 {
    finished.bytes as f64 / finished.ended.since(finished.started).as_s() / 1e9
}

#[test]
fn copies_of_every_size_take_what_was_measured() {
    let mut compared = 0;
    for row in table("pcie") {
        let direction = match row["metric"].as_str() {
            "pcie_pinned_h2d" => Direction::ToDevice,
            "pcie_pinned_d2h" => Direction::ToHost,
            _ => continue,
        };
        let bytes: u64 = row["bytes"].parse().unwrap();
        let mut links = HostLinks::new(1, h200(), None);
        links.start(SimTime::ZERO, 0, direction, bytes * 50, 50, 0);
        let found = gb_s(&drain(&mut links)[0]);
        close(found, number(&row, "gb_s").unwrap(), 0.10, &format!("{direction:?} {bytes}"));
        assert!(
            (h200().time_alone(direction, bytes * 50, 50).as_s() * 1e9 * found / (bytes * 50) as f64 - 1.0).abs()
                < 1e-9
        );
        compared += 1;
    }
    assert_eq!(compared, 18);
}

#[test]
fn both_directions_at_once_lose_what_was_measured() {
    let mut compared = 0;
    for row in table("pcie").iter().filter(|row| row["metric"] == "pcie_pinned_both_directions") {
        let bytes: u64 = row["bytes"].parse().unwrap();
        // At 1 MiB this table has 16 GB/s to the host, where `pcie-two-gpus` has 40: its streams hardly overlapped.
        if bytes < 16 * MIB {
            continue;
        }
        let mut links = HostLinks::new(1, h200(), None);
        for direction in Direction::BOTH {
            links.start(SimTime::ZERO, 0, direction, bytes * 50, 50, 0);
        }
        let rates: Vec<f64> = drain(&mut links).iter().map(gb_s).collect();
        close(rates[0], number(row, "h2d_gb_s").unwrap(), 0.10, "to the device");
        close(rates[1], number(row, "d2h_gb_s").unwrap(), 0.10, "to the host");
        close(rates[0] + rates[1], number(row, "gb_s").unwrap(), 0.10, "together");
        compared += 1;
    }
    assert_eq!(compared, 2);
}

#[test]
fn two_gpus_behind_one_root_get_what_was_measured() {
    let mut compared = 0;
    for row in table("pcie-two-gpus").iter().filter(|row| row["metric"] == "pcie_pinned_multi") {
        let bytes: u64 = row["bytes"].parse().unwrap();
        // Four streams of 40 GB/s each but 60 GB/s in all: they ran one after another, and met no root.
        if bytes == MIB && row["direction"] == "both" && row["gpus"] == "0+1" {
            continue;
        }
        let mut links = HostLinks::new(2, h200(), Some(TWO_GPU_ROOT));
        let directions: &[Direction] = match row["direction"].as_str() {
            "h2d" => &[Direction::ToDevice],
            "d2h" => &[Direction::ToHost],
            _ => &Direction::BOTH,
        };
        for gpu in row["gpus"].split('+').map(|gpu| gpu.parse().unwrap()) {
            for &direction in directions {
                links.start(SimTime::ZERO, gpu, direction, bytes * 20, 20, 0);
            }
        }
        let ended = drain(&mut links);
        for finished in &ended {
            let way = if finished.direction == Direction::ToDevice { "h2d" } else { "d2h" };
            let key = format!("gpu{}_{way}_gb_s", finished.gpu);
            close(gb_s(finished), number(row, &key).unwrap(), 0.10, &format!("{key} in {row:?}"));
        }
        // The aggregate of 1 MiB copies is by the host's clock, and so few bytes that starting them counts.
        if bytes > MIB {
            let last = ended.iter().map(|finished| finished.ended).max().unwrap();
            let aggregate = (bytes * 20 * ended.len() as u64) as f64 / last.as_s() / 1e9;
            close(aggregate, number(row, "aggregate_gb_s").unwrap(), 0.10, &format!("{row:?}"));
        }
        compared += 1;
    }
    assert_eq!(compared, 26);
}

#[test]
fn decode_steps_are_slowed_as_measured() {
    for row in table("decode-with-copies") {
        let mut links = HostLinks::new(1, h200(), None);
        for (direction, mode) in [(Direction::ToDevice, "h2d"), (Direction::ToHost, "d2h")] {
            if row["mode"] == mode || row["mode"] == "both" {
                links.start(SimTime::ZERO, 0, direction, 64 * MIB, 1, 0);
            }
        }
        let slowed = 1.0 + f64::from(links.decode_slowdown(0).ppm) * 1e-6;
        let measured = number(&row, "step_ms").unwrap() / number(&row, "step_alone_ms").unwrap();
        // At batch 256 (6.5 ms, bound by compute) the table's own steps scatter up to 9.4 ms.
        let slack = if row["B"] == "256" { 0.036 } else { 0.013 };
        close(slowed, measured, slack, &format!("batch {} {}", row["B"], row["mode"]));
    }
}

#[test]
fn kernel_copies_slow_decode_by_their_share_while_they_run() {
    let settings = LinkSettings { copier: Copier::SmKernel { share_ppm: 30_000 }, ..h200() };
    let mut links = HostLinks::new(1, settings, None);
    assert_eq!(links.decode_slowdown(0), Slowdown { ppm: 0 });
    links.start(SimTime::ZERO, 0, Direction::ToHost, MIB, 1, 0);
    assert_eq!(links.decode_slowdown(0).ppm / 1000, 30 + 7);
    drain(&mut links);
    assert_eq!(links.decode_slowdown(0), Slowdown { ppm: 0 });
}

#[test]
fn in_order_transfers_wait_for_their_turn_and_end_no_later_altogether() {
    let run = |in_order| {
        let mut links = HostLinks::new(1, LinkSettings { in_order, ..h200() }, None);
        for tag in 0..3 {
            links.start(SimTime::ZERO, 0, Direction::ToHost, 64 * MIB, 1, tag);
        }
        drain(&mut links).iter().map(|finished| (finished.tag, finished.ended.as_s())).collect::<Vec<_>>()
    };
    let (shared, ordered) = (run(false), run(true));
    assert_eq!(ordered.iter().map(|end| end.0).collect::<Vec<_>>(), [0, 1, 2]);
    assert!((ordered[0].1 * 3.0 - ordered[2].1).abs() < 1e-9, "{ordered:?}");
    assert!((shared[0].1 - shared[2].1).abs() < 1e-9, "three equal shares end together: {shared:?}");
    assert!((ordered[2].1 / shared[2].1 - 1.0).abs() < 0.01);
}

#[derive(Clone, Copy, Debug)]
struct Start {
    after: u64,
    gpu: usize,
    direction: Direction,
    bytes: u64,
    pieces: u64,
}

fn starts() -> impl Strategy<Value = Vec<Start>> {
    let one = (0..3_000_000u64, 0..3usize, any::<bool>(), 0..50_000_000u64, 1..200u64);
    prop::collection::vec(one, 1..12).prop_map(|starts| {
        let start = |(after, gpu, up, bytes, pieces)| {
            let direction = if up { Direction::ToDevice } else { Direction::ToHost };
            Start { after, gpu, direction, bytes, pieces }
        };
        starts.into_iter().map(start).collect()
    })
}

fn world(root: bool, in_order: bool) -> HostLinks {
    HostLinks::new(3, LinkSettings { in_order, ..h200() }, root.then_some(TWO_GPU_ROOT))
}

/// Hands the transfers in, with looks at the links every `look` nanoseconds in between; checks limits at each start.
fn play(starts: &[Start], mut links: HostLinks, look: Option<u64>) -> (Vec<Finished>, HostLinks) {
    let mut ended = Vec::new();
    let mut now = SimTime::ZERO;
    for start in starts {
        let at = now + Span(u128::from(start.after) * 1_000_000_000 + 7);
        while let Some(step) = look.filter(|_| now < at) {
            now = (now + Span(u128::from(step) * 1_000_000_000 + 1)).min(at);
            ended.extend(links.advance(now));
        }
        now = at;
        links.start(now, start.gpu, start.direction, start.bytes, start.pieces, 9);
        check_fair(&links);
    }
    ended.extend(drain(&mut links));
    (ended, links)
}

/// No limit is exceeded, and every transfer that is below its own pace meets a limit that is used up and on which
/// nobody moves faster than it does.
fn check_fair(links: &HostLinks) {
    let flying: Vec<&Transfer> = links.transfers.iter().filter(|transfer| transfer.rate > 0).collect();
    let busy = |gpu: Option<usize>, direction| {
        flying.iter().any(|t| t.direction == direction && gpu.is_none_or(|gpu| gpu == t.gpu))
    };
    for transfer in &flying {
        let other = transfer.direction.other();
        let link = links.settings.rates.limit(transfer.direction, busy(Some(transfer.gpu), other));
        let root = links.root.map_or(u64::MAX, |root| root.limit(transfer.direction, busy(None, other)));
        let pace = links.settings.pace(transfer.bytes, transfer.pieces, link);
        let same = |gpu: Option<usize>| {
            let rates = flying
                .iter()
                .filter(move |t| t.direction == transfer.direction && gpu.is_none_or(|gpu| gpu == t.gpu))
                .map(|t| t.rate);
            (rates.clone().sum::<u64>(), rates.max().unwrap())
        };
        let mut bound = transfer.rate == pace;
        for (limit, (sum, fastest)) in [(link, same(Some(transfer.gpu))), (root, same(None))] {
            assert!(sum <= limit, "{sum} over {limit}");
            bound |= limit - sum < 40 && fastest <= transfer.rate + 40;
        }
        assert!(bound, "{transfer:?} could move faster");
    }
}

proptest! {
    #[test]
    fn looking_at_links_changes_nothing(
        starts in starts(), root: bool, in_order: bool, look in 1_000..1_000_000u64
    ) {
        let (ended, links) = play(&starts, world(root, in_order), None);
        let (ended_too, links_too) = play(&starts, world(root, in_order), Some(look));
        prop_assert_eq!(ended, ended_too);
        prop_assert_eq!(&links.traffic, &links_too.traffic);
    }

    #[test]
    fn bytes_are_conserved_and_no_link_is_used_beyond_its_limit(starts in starts(), root: bool, in_order: bool) {
        let (ended, links) = play(&starts, world(root, in_order), None);
        prop_assert_eq!(ended.len(), starts.len());
        prop_assert!(ended.windows(2).all(|pair| pair[0].ended <= pair[1].ended));
        for gpu in 0..3 {
            for direction in Direction::BOTH {
                let mine = || starts.iter().filter(|start| start.gpu == gpu && start.direction == direction);
                let traffic = links.traffic(gpu, direction);
                prop_assert_eq!(traffic.bytes(), mine().map(|start| start.bytes).sum::<u64>());
                prop_assert_eq!(traffic.moved % UNITS_PER_BYTE, 0);
                prop_assert_eq!(traffic.transfers, mine().count() as u64);
                prop_assert!(links.utilisation(gpu, direction) <= 1.0);
            }
        }
        prop_assert!(links.is_idle());
    }
}
