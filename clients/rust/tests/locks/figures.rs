//! What a listener hears of locks, and what a meter of OpenTelemetry makes of it.

use crate::{SHORT, client_of};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, Metric, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use redis_lock_client::opentelemetry::metrics::MeterProvider;
use redis_lock_client::{Listener, recorded};
use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use testbed::{PATIENCE, Server, wait_for};

/// Says what it hears. What comes first makes it panic.
struct Says(std::sync::mpsc::Sender<&'static str>);

impl Listener for Says {
    fn waited(&self, _: Duration) {
        self.0.send("waited").unwrap();
        panic!("the listener fails");
    }

    fn refused(&self, _: Duration) {
        self.0.send("refused").unwrap();
    }

    fn held(&self, time: Duration) {
        assert!(time >= Duration::from_millis(10));
        self.0.send("held").unwrap();
    }

    fn lost(&self, _: Duration) {
        self.0.send("lost").unwrap();
    }

    fn renewal_failed(&self) {
        self.0.send("renewal failed").unwrap();
    }
}

#[test]
fn a_listener_hears_what_locks_do_though_it_panics() {
    let server = Server::new();
    let (told, heard) = channel();
    let client = client_of(&server).listener(Says(told)).unwrap();
    let next = || heard.recv_timeout(PATIENCE).unwrap();
    let lock = client.key("k").lease(SHORT);
    let guard = lock.lock().unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    thread::sleep(Duration::from_millis(10));
    guard.release().unwrap();
    assert_eq!([next(), next(), next()], ["waited", "refused", "held"]);

    let guard = lock.lock().unwrap();
    server.connect().ok(&["ACL", "SETUSER", "default", "-lock.extend"]);
    assert_eq!([next(), next()], ["waited", "renewal failed"]);
    assert!(guard.wait_lost(PATIENCE));
    drop(guard);
    let last = std::iter::repeat_with(next).find(|said| *said != "renewal failed");
    assert_eq!(last, Some("lost"));
    drop((lock, client));
    // A lock that was lost is not told again as one that was held; then its thread ends.
    assert_eq!(heard.recv_timeout(PATIENCE), Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
}

/// What a meter has of one instrument: its unit, how many times it was told of something, and the sum of that.
type Point = (String, u64, f64);

/// The only point of an instrument, which has no attribute.
fn point(metric: &Metric) -> Point {
    let (attributes, count, sum) = match metric.data() {
        AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
            let [point] = &histogram.data_points().collect::<Vec<_>>()[..] else { panic!("{histogram:?}") };
            // Bounds for milliseconds would have all of them in two buckets.
            assert!(point.bounds().filter(|bound| *bound < 1.0).count() > 5, "{point:?}");
            (point.attributes().count(), point.count(), point.sum())
        }
        AggregatedMetrics::U64(MetricData::Sum(sum)) => {
            let [point] = &sum.data_points().collect::<Vec<_>>()[..] else { panic!("{sum:?}") };
            (point.attributes().count(), point.value(), 0.0)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(attributes, 0, "{metric:?}");
    (metric.unit().to_owned(), count, sum)
}

#[test]
fn a_meter_has_what_locks_of_threads_and_tasks_did_and_no_key() {
    let server = Server::new();
    let exporter = InMemoryMetricExporter::default();
    let provider = SdkMeterProvider::builder().with_reader(PeriodicReader::builder(exporter.clone()).build()).build();
    let listener = recorded(&provider.meter("tests"));
    listener.dropped(7);
    let client = client_of(&server).listener(listener).unwrap();
    let lock = client.key("k").lease(SHORT);
    let guard = lock.lock().unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    thread::sleep(Duration::from_millis(20));
    guard.release().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let guard = runtime.block_on(lock.lock_async()).unwrap();
    server.connect().ok(&["ACL", "SETUSER", "default", "-lock.extend"]);
    assert!(guard.loss().wait(PATIENCE));
    drop(guard);

    let mut points: BTreeMap<String, Point> = BTreeMap::new();
    wait_for("the loss to be recorded", || {
        provider.force_flush().unwrap();
        let all = exporter.get_finished_metrics().unwrap();
        let metrics = all.last().into_iter().flat_map(|last| last.scope_metrics()).flat_map(|scope| scope.metrics());
        points = metrics.map(|metric| (metric.name().to_owned(), point(metric))).collect();
        points.contains_key("redis_lock.lost")
    });
    let mut expect = |name: &str, unit: &str, counts: std::ops::RangeInclusive<u64>, least: f64| {
        let (real, count, sum) = points.remove(name).unwrap_or_else(|| panic!("{name}: {points:?}"));
        assert!(real == unit && counts.contains(&count) && sum >= least && sum < 60.0, "{name}: {real} {count} {sum}");
    };
    expect("redis_lock.waited", "s", 2..=2, 0.0);
    expect("redis_lock.refused", "s", 1..=1, 0.0);
    expect("redis_lock.held", "s", 1..=1, 0.02);
    expect("redis_lock.lost", "s", 1..=1, 1.0);
    expect("redis_lock.renewal_failed", "{renewal}", 1..=100, 0.0);
    expect("redis_lock.dropped", "{figure}", 7..=7, 0.0);
    assert!(points.is_empty(), "{points:?}");
}
