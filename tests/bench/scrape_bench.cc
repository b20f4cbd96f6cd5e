// Times a scrape of /metrics from the request to the last byte, with and without the tokens of
// experts. A daemon in this process leads 20 jobs of 512 ranks, 61 layers and 256 experts each. The
// ranks are events in the daemon's queue; store and streams are not measured. Exit 1 when a median
// of the processor time, the client's included, is above the limit: what a scrape takes of the
// clock depends on what else the machine does.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "placement/digest.h"
#include "placement/placement.h"
#include "server/daemon.h"
#include "server/runner/runner.h"
#include "tests/bench/measure.h"

// After Eigen: a system header of it defines a macro that Eigen has as a name.
#include <httplib.h>

namespace eplb {
namespace {

constexpr int kJobs = 20;
constexpr int32_t kRanks = 512;
constexpr TopologyOptions kShape = {
    .num_layers = 61, .num_experts = 256, .num_slots = 512, .num_gpus = kRanks, .num_nodes = 64};
constexpr int32_t kWindow = 10;  // steps
constexpr int kScrapes = 21;
constexpr double kMostMilliseconds = 50;
constexpr int kPatience = 600;  // tenths of a second

// Hello of a rank whose run has taken no step.
wire::Hello HelloOf(const std::string& job, int32_t rank, const Digest& digest) {
  wire::Hello hello;
  hello.job = job;
  hello.run_id = "run-1";
  hello.nonce = 1 + static_cast<uint64_t>(rank);
  hello.rank = rank;
  hello.world_size = kRanks;
  hello.gpu = rank;
  hello.shape = kShape;
  hello.running_digest = digest;
  hello.vote_every = 8;
  hello.report_every = kWindow;
  hello.weight_bytes = 8;
  hello.staging_rows = 1;
  hello.reduce = wire::Reduce::kRoot;
  hello.library_version = DaemonVersion();
  return hello;
}

// Registers all ranks of all jobs and reports two windows of each. False when a job has no window
// within kPatience.
bool Fill(Runner& runner) {
  const Digest digest = DigestOf(Placement::Static(*Topology::Make(kShape)));
  const Load load = bench::MakeLoad(kShape.num_layers, kShape.num_experts);
  core::SessionId session = 0;
  for (int job = 0; job < kJobs; ++job) {
    const core::SessionId root = session + 1;
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      (void)runner.Push(core::SessionMessage{
          .session = ++session, .message = HelloOf(absl::StrCat("job-", job), rank, digest)});
    }
    for (const int64_t step : {int64_t{0}, int64_t{kWindow}}) {
      wire::LoadReport report;
      report.first_step = step;
      report.last_step = step + kWindow - 1;
      report.counts = load.counts();
      (void)runner.Push(core::SessionMessage{.session = root, .message = std::move(report)});
    }
  }
  for (int tenths = 0; tenths < kPatience; ++tenths) {
    int measured = 0;
    for (const v1::JobStatus& view : runner.Jobs()) {
      if (view.connected_ranks() == kRanks && view.balancedness() > 0) ++measured;
    }
    if (measured == kJobs) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

// Processor time of all threads of this process.
double ProcessorMilliseconds() {
  return static_cast<double>(std::clock()) * 1e3 / static_cast<double>(CLOCKS_PER_SEC);
}

// Prints one line; false when the median is above the limit or a scrape fails.
bool Measure(bool per_expert) {
  DaemonConfig config;
  config.keys.mutable_listen()->set_grpc("127.0.0.1:0");
  config.keys.mutable_listen()->set_http("127.0.0.1:0");
  config.keys.mutable_listen()->set_unix(kNoSocket);
  config.keys.mutable_store()->set_path("memory");
  config.keys.mutable_metrics()->set_per_expert(per_expert);
  config.keys.mutable_policy()->set_name("incremental");
  config.keys.mutable_policy()->set_every_steps(1 << 20);  // nothing is solved meanwhile
  const absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config);
  if (!daemon.ok()) {
    std::fprintf(stderr, "scrape_bench: %s\n", daemon.status().ToString().c_str());
    return false;
  }
  if (!Fill((*daemon)->runner())) {
    std::fprintf(stderr, "scrape_bench: not all of %d jobs have a window\n", kJobs);
    return false;
  }
  httplib::Client client("127.0.0.1", (*daemon)->http_address().port);
  std::vector<double> times;
  std::vector<double> processor_times;
  std::string page;
  for (int scrape = 0; scrape < kScrapes; ++scrape) {
    const double before = ProcessorMilliseconds();
    times.push_back(bench::Milliseconds([&] {
      const httplib::Result answer = client.Get("/metrics");
      page = answer && answer->status == 200 ? answer->body : "";
    }));
    processor_times.push_back(ProcessorMilliseconds() - before);
    if (page.empty()) {
      std::fprintf(stderr, "scrape_bench: GET /metrics has no answer\n");
      return false;
    }
  }
  const double median = bench::Median(processor_times);
  int64_t series = 0;
  for (size_t begin = 0; begin < page.size(); begin = page.find('\n', begin) + 1) {
    if (page[begin] != '#') ++series;
  }
  std::fputs(absl::StrFormat(
                 "scrape of %d jobs x %d ranks x %d layers x %d experts, per_expert %s: "
                 "%6d series %5.2f MB  %6.2f ms of processor (limit %.0f), %6.2f ms\n",
                 kJobs, kRanks, kShape.num_layers, kShape.num_experts,
                 per_expert ? "true " : "false", series, static_cast<double>(page.size()) * 1e-6,
                 median, kMostMilliseconds, bench::Median(times))
                 .c_str(),
             stdout);
  return median <= kMostMilliseconds;
}

int Main() {
  const bool plain = Measure(false);
  const bool with_experts = Measure(true);
  return plain && with_experts ? 0 : 1;
}

}  // namespace
}  // namespace eplb

int main() { return eplb::Main(); }
