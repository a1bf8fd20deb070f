//! Two hundred and more bad inputs in one table: each is one line that names the place and says what would be right, exit
//! code 2, and nothing is written.

use super::check;

const SMALL: &str = "[job]\nrequests = 40\nprompt_tokens = 100\noutput_tokens = 50\nmax_tokens = 60\n[fleet]\nhardware = \
                     \"rtx-pro-6000\"\ngpus = 2\n[model]\nllm = \"qwen3-8b\"\n[engine]\nname = \"vllm\"\n[benchmark]\n\
                     prompt_tokens = 10\noutput_tokens = 5\n";

const TRACED: &str = "[job]\ntrace = \"good.csv\"\n[fleet]\nhardware = \"rtx-pro-6000\"\ngpus = 2\n[model]\nllm = \"qwen3-8b\"\n\
                      [engine]\nname = \"vllm\"\n";

/// Files that are wrong for whoever reads them, and good ones.
const FILES: [(&str, &str); 23] = [
    ("small.toml", SMALL),
    ("traced.toml", TRACED),
    ("good.csv", "prompt_tokens,output_tokens\n5,6\n7,2\n"),
    ("empty", ""),
    ("header.csv", "prompt_tokens,output_tokens\n"),
    ("word.csv", "prompt_tokens,output_tokens\n5,six\n"),
    ("minus.csv", "prompt_tokens,output_tokens\n5,-6\n"),
    ("ragged.csv", "prompt_tokens,output_tokens\n5,6,7\n"),
    ("odd.csv", "colour,size\nred,5\n"),
    ("cut.jsonl", "{\"input_length\": 5, \"output_length\""),
    ("list.json", "[1, 2, 3]"),
    ("noise.toml", "=== no TOML ==="),
    ("two.toml", "[job]\nrequests = 1\n[job]\nrequests = 2\n"),
    ("table.csv", "concurrency,throughput_tok_s,throughput_kind\n1,60,output\n2,fast,output\n"),
    ("table0.csv", "concurrency,throughput_tok_s,throughput_kind\n0,60,output\n"),
    ("fit.toml", "version = 1\n"),
    ("results.csv", "# makespan forecast; version 0; crc 00000000\nunit,crc\n"),
    ("grid.csv", "fleet.gpus\n2\n0\n"),
    ("grid0.csv", "fleet.gpus\n"),
    ("grid.toml", "[axes]\n\"fleet.gpus\" = 2\n"),
    ("grid2.toml", "[axis]\n\"fleet.gpus\" = [2]\n"),
    ("config.json", "{\"architectures\": [\"Unheard\"]}"),
    ("kept.txt", "kept"),
];

/// Keys of a scenario, and values that none of them takes.
const KEYS: [(&str, &str); 23] = [
    ("job.requests", "0 -1 1.5 1e30 nan many []"),
    ("job.max_tokens", "0 -5 0.5 1e30 nan long"),
    ("job.prompt_tokens", "0 -1 1e30 nan {law='gamma'} {law='normal',mean=5} {law='gamma',mean=-5,cv=1}"),
    (
        "job.output_tokens",
        "0 -1 nan {law='lognormal',median=0,sigma=1} {law='lognormal',median=5,sigma=-1} {file='absent.csv'}",
    ),
    ("job.order", "sideways 5"),
    ("fleet.gpus", "0 -2 1.5 1e12 nan all"),
    ("fleet.tensor_parallel", "0 -1 3 nan"),
    ("fleet.speed_spread", "-0.1 nan wide"),
    ("fleet.startup_s", "-1 nan soon"),
    ("fleet.power_limit_w", "0 -300 nan"),
    ("fleet.hardware", "rtx-6000-pro-max 5"),
    ("fleet.dispatch", "fair"),
    ("model.llm", "qwen9 5 absent/config.json"),
    ("model.weights", "fp3"),
    ("model.kv", "fp3"),
    ("engine.name", "sgl 5"),
    ("engine.mem_fraction", "0 1.5 -0.5 nan most"),
    ("engine.max_num_seqs", "0 -1 1.5 nan"),
    ("engine.cost.bandwidth_share", "0 -0.5 nan 7 fast"),
    ("engine.cost.flops_share", "0 -0.5 nan"),
    ("engine.cost.step_gap_s", "-1 nan"),
    ("client.concurrency", "0 -1 1.5 some nan"),
    ("client.concurency", "4"),
];

/// Command lines, and what their error must name. Words are split at blanks; `~` stands for one inside a word.
const LINES: &str = "
simulat | simulat
simulate absent | absent
simulate empty | empty
simulate noise.toml | noise.toml:1
simulate two.toml | two.toml:3
simulate good.csv | good.csv
simulate list.json | list.json
simulate . | .
simulate small.toml --set | --set
simulate small.toml --set job | --set
simulate small.toml --set =5 | --set
simulate small.toml --set job.=5 | --set
simulate small.toml --set a.b.c=5 | a
simulate small.toml --seed -1 | --seed
simulate small.toml --seed x | --seed
simulate small.toml --sead 1 | --sead
simulate small.toml --fit absent.toml | absent.toml
simulate small.toml --fit fit.toml | fit.toml
simulate small.toml --fit good.csv | good.csv
simulate small.toml --timeline kept.txt | --timeline
simulate small.toml --trace kept.txt | --trace
simulate small.toml --requests-csv kept.txt | --requests-csv
simulate traced.toml --set job.trace=absent.csv | absent.csv
simulate traced.toml --set job.trace=empty | empty
simulate traced.toml --set job.trace=header.csv | header.csv
simulate traced.toml --set job.trace=word.csv | word.csv:2
simulate traced.toml --set job.trace=minus.csv | minus.csv:2
simulate traced.toml --set job.trace=odd.csv | odd.csv
simulate traced.toml --set job.trace=cut.jsonl | cut.jsonl
simulate traced.toml --set job.trace=table.csv | table.csv
sweep small.toml --at 0 | --at
sweep small.toml --at -1 | --at
sweep small.toml --at 1,,2 | --at
sweep small.toml --at 9999999 | --at
sweep small.toml --cap 0 | --cap
sweep small.toml --replications 0 | --replications
sweep small.toml --table absent.csv | absent
sweep small.toml --table table.csv | table.csv:3
sweep small.toml --table table0.csv | table0.csv:2
sweep small.toml --table empty | empty
sweep small.toml --range 0 | --range
sweep small.toml --range 1..0 | --range
sweep small.toml --range 0..99999 | --range
sweep small.toml --range 0..1 | --range
sweep small.toml --grid absent.csv | absent.csv
sweep small.toml --grid grid0.csv | grid0.csv
sweep small.toml --grid grid.csv | grid.csv
sweep small.toml --from absent.csv | absent.csv
sweep small.toml --from good.csv | good.csv:1
sweep small.toml --results kept.txt | kept.txt:1
sweep small.toml --threads 0 | --threads
calibrate small.toml | benchmark.table
calibrate small.toml --table absent.csv | absent
calibrate small.toml --table table.csv | table.csv:3
calibrate small.toml --table good.csv | good.csv
calibrate --out kept.txt | --out
calibrate --fit fit.toml | --fit
diagnose small.toml | benchmark.table
diagnose small.toml --table table.csv | table.csv:3
diagnose small.toml --log absent.log | absent.log
validate absent | absent
validate --only nothing-like-it | --only
validate --write kept.txt | --write
validate --range 0..1 | --range
validate --range 0..9999 --results new.csv | --range
inspect | FILE
inspect absent.csv | absent.csv
inspect empty | empty
inspect header.csv | header.csv
inspect odd.csv | odd.csv
inspect list.json | list.json
forecast small.toml --replications 0 | --replications
forecast small.toml --replications x | --replications
forecast small.toml --precision 0 | --precision
forecast small.toml --precision 1 | --precision
forecast small.toml --precision=-1 | --precision
forecast small.toml --precision nan | --precision
forecast small.toml --deadline soon | --deadline
forecast small.toml --deadline 0d | --deadline
forecast small.toml --deadline=-5d | --deadline
forecast small.toml --deadline 5 | --deadline
forecast small.toml --range 5..5 | --range
forecast small.toml --range a..b | --range
forecast small.toml --range 0..2 --replications 2 | --replications
forecast small.toml --threads 0 | --threads
forecast small.toml --threads x | --threads
forecast small.toml --results good.csv | good.csv:1
forecast small.toml --results results.csv | results.csv
forecast small.toml --from results.csv | results.csv
forecast small.toml --from absent.csv | absent.csv
forecast small.toml --grid grid.csv | grid.csv
forecast small.toml --grid grid.toml | grid.toml
forecast small.toml --grid grid2.toml | grid2.toml
forecast small.toml --grid noise.toml | noise.toml
forecast small.toml --grid grid0.csv | grid0.csv
decide small.toml --option x | --option
decide small.toml --option x: | --option
decide small.toml --option a:~b | a
decide small.toml --option a:~fleet.gpu=2 | fleet.gpu
decide small.toml --option a:~fleet.gpus=0 | fleet.gpus
decide small.toml --option as~is:~fleet.gpus=4 | option
decide small.toml --confidence 0 | --confidence
decide small.toml --confidence 1 | --confidence
decide small.toml --confidence nan | --confidence
decide small.toml --price -1 | --price
decide small.toml --price nan | --price
decide small.toml --watts 0 | --watts
decide small.toml --watts 600 --idle-watts 700 | --idle-watts
decide small.toml --idle-watts 60 | --watts
decide small.toml --keep all | --keep
decide small.toml --deadline never | --deadline
decide small.toml --replications 0 | --replications
decide small.toml --range 0..1 | --range
decide small.toml --range 0..99999 --results new.csv | --range
scale small.toml --gpus 0 | --gpus
scale small.toml --gpus 1,1 | --gpus
scale small.toml --gpus x | --gpus
plan small.toml --set job.requests=0 | job.requests
plan --html kept.txt | --html
plan --deadline x | --deadline
list nothing | nothing
show absent | absent
show noise.toml | noise.toml
show config.json | config.json
merge | FILES
merge good.csv | --out
merge absent.csv --out new.csv | absent.csv
merge good.csv --out new.csv | good.csv:1
merge empty --out new.csv | empty:1
merge results.csv --out new.csv | results.csv
merge results.csv --out kept.txt | kept.txt
merge results.csv --out new.csv --range 5 | --range
";

#[test]
fn two_hundred_bad_inputs_are_refused_with_place_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in FILES {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let mut cases: Vec<(Vec<String>, String)> = Vec::new();
    for line in LINES.lines().filter(|line| !line.is_empty()) {
        let (words, place) = line.split_once(" | ").unwrap();
        cases.push((words.split(' ').map(|word| word.replace('~', " ")).collect(), place.to_owned()));
    }
    for (key, values) in KEYS {
        for value in values.split(' ') {
            let set = format!("{key}={value}").replace('\'', "\"");
            let words = ["simulate", "small.toml", "--set", &set].map(str::to_owned).to_vec();
            // A bad value inside a law is named by its own key; a key that is not known by its table.
            cases.push((words, key.split('.').next().unwrap().to_owned()));
        }
    }
    assert!(cases.len() >= 200, "{}", cases.len());
    let borrowed: Vec<(Vec<&str>, [&str; 1])> =
        cases.iter().map(|(words, place)| (words.iter().map(String::as_str).collect(), [place.as_str()])).collect();
    let all: Vec<(&[&str], i32, &[&str])> =
        borrowed.iter().map(|(words, place)| (words.as_slice(), 2, place.as_slice())).collect();
    check(folder.path(), &all);
    let mut left: Vec<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    let mut own: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
    own.sort_unstable();
    assert_eq!(left, own, "nothing is written");
    for (name, text) in FILES {
        assert_eq!(std::fs::read_to_string(folder.path().join(name)).unwrap(), text, "{name} is as it was");
    }
}
