use makespan::calibrate::*;
use makespan::experiment::*;
use makespan::model::scenario::*;
fn main() {
    let sets: Vec<Override> = std::env::args().skip(1).map(|a| Override::parse(&a).unwrap()).collect();
    let setup = Setup::new(&Scenario::load(DEFAULT_SCENARIO, &sets).unwrap()).unwrap();
    let (_, table) = measured_table(&setup).unwrap().unwrap();
    for l in arithmetic_caps(&setup) { println!("{l:?}"); }
    let f = fit(&setup, &table, FitOptions::new(1)).unwrap();
    for m in &f.modes {
        let e: Vec<String> = f.model.points.iter().zip(&m.predictions).map(|(p, q)| format!("{:+.1}({:.1})", 100.0*(p.measured.tok_per_s.unwrap()/q.tok_per_s).ln(), 100.0*q.run_deviation)).collect();
        println!("{:?} prior {:.4} logZ {:.2} noise {:.3} rms {:.3} {}", m.structure, m.prior, m.log_evidence, m.noise_score, 100.0*rms_log_error(&f.model.points, &m.predictions), e.join(" "));
    }
}
