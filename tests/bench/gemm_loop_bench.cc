// Measures what an idle client costs a training loop on the GPU. A step is some matrix products on
// a stream and a wait for it, alone and with Record and StepBoundary of a client that has nothing
// to move. The client reports to a daemon, a child of this process. Both kinds of step take turns,
// so that drifting clocks do not count. A whole turn is one sample, because a median over steps
// would leave out the votes, one step in eight. Prints one JSON object and one with the verdict;
// with
// --check a miss is exit 1. Exit 77 without a usable GPU.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "client/client.h"
#include "cuda/runtime.h"
#include "tests/bench/gemm.h"
#include "tests/bench/measure.h"
#include "tests/bench/targets.h"
#include "tests/tools/bench/child_process.h"

namespace eplb::bench {
namespace {

constexpr int kUsage = 2;
constexpr int kSkipped = 77;
constexpr int32_t kSize = 1024;
constexpr int32_t kProductsPerStep = 16;
constexpr int32_t kTurns = 21;
constexpr int32_t kStepsPerTurn = 48;  // six votes
constexpr int32_t kLayers = 8;
constexpr int32_t kExperts = 64;
constexpr int64_t kRowBytes = int64_t{1} << 20;
constexpr int64_t kLayerBytes = kExperts * kRowBytes;
constexpr absl::Duration kDaemonDeadline = absl::Seconds(10);

// A job of one rank with expert rows on the device. It votes and reports, and as its one GPU cannot
// be out of balance nothing is ever proposed and nothing moves.
class IdleClient {
 public:
  absl::Status Init() {
    EPLB_ASSIGN_OR_RETURN(
        daemon_,
        ChildProcess::Start({BesideThisProgram("../bin/eplbd"), "--listen", "127.0.0.1:0", "--http",
                             "127.0.0.1:0", "--store", "memory", "--log-level", "error"},
                            {}, {}));
    ClientOptions options;
    options.job = "gemm-loop";
    options.endpoint = daemon_->address();
    options.num_layers = kLayers;
    options.num_experts = kExperts;
    options.num_slots = kExperts;
    EPLB_ASSIGN_OR_RETURN(client_, Client::Connect(options, [](std::string_view bytes) {
                            return absl::StatusOr<std::vector<std::string>>({std::string(bytes)});
                          }));
    EPLB_ASSIGN_OR_RETURN(rows_, cuda::MakeDeviceMemory(kLayers * kLayerBytes));
    std::vector<ExpertTensorView> tensors;
    tensors.reserve(kLayers);
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      tensors.push_back({.name = absl::StrCat("layers.", layer, ".weight"),
                         .layer = layer,
                         .base = static_cast<std::byte*>(rows_.get()) + layer * kLayerBytes,
                         .num_rows = kExperts,
                         .row_bytes = kRowBytes,
                         .row_stride = kRowBytes});
    }
    EPLB_RETURN_IF_ERROR(client_->RegisterExperts(tensors));
    return Await([](const ClientStats& stats) { return stats.connected; });
  }

  // Until the session, which has a thread of its own, is so far.
  template <class Condition>
  absl::Status Await(const Condition& condition) const {
    for (const absl::Time deadline = absl::Now() + kDaemonDeadline; absl::Now() < deadline;) {
      if (condition(client_->stats())) return absl::OkStatus();
      absl::SleepFor(absl::Milliseconds(5));
    }
    return absl::DeadlineExceededError("the client does not reach its daemon or tells it nothing");
  }

  absl::Status Step(cudaStream_t stream) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      EPLB_RETURN_IF_ERROR(client_->Record(layer, counts_));
    }
    return client_->StepBoundary(step_++, stream).status();
  }

  std::string transport() const { return std::string(client_->transport()); }
  ClientStats stats() const { return client_->stats(); }

 private:
  std::unique_ptr<ChildProcess> daemon_;
  cuda::DeviceMemory rows_;  // outlives the client
  std::unique_ptr<Client> client_;
  std::vector<int64_t> counts_ = std::vector<int64_t>(kExperts, 1000);
  int64_t step_ = 0;
};

class Loop {
 public:
  absl::Status Init() {
    constexpr int64_t kBytes = int64_t{kSize} * kSize * sizeof(float);
    EPLB_ASSIGN_OR_RETURN(stream_, cuda::MakeStream());
    for (cuda::DeviceMemory* matrix : {&a_, &b_, &c_}) {
      EPLB_ASSIGN_OR_RETURN(*matrix, cuda::MakeDeviceMemory(kBytes));
      EPLB_RETURN_IF_ERROR(cuda::ToStatus(cudaMemset(matrix->get(), 0, kBytes), "cudaMemset"));
    }
    // Our stream does not wait for the default one.
    return cuda::ToStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  // Microseconds of a step; client: null for none.
  absl::StatusOr<double> TimeStep(IdleClient* client) {
    const auto begin = std::chrono::steady_clock::now();
    for (int32_t i = 0; i < kProductsPerStep; ++i) {
      EPLB_RETURN_IF_ERROR(LaunchGemm(static_cast<const float*>(a_.get()),
                                      static_cast<const float*>(b_.get()),
                                      static_cast<float*>(c_.get()), kSize, stream_.get()));
    }
    if (client != nullptr) EPLB_RETURN_IF_ERROR(client->Step(stream_.get()));
    EPLB_RETURN_IF_ERROR(
        cuda::ToStatus(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize"));
    const std::chrono::duration<double, std::micro> spent =
        std::chrono::steady_clock::now() - begin;
    return spent.count();
  }

 private:
  cuda::Stream stream_;
  cuda::DeviceMemory a_, b_, c_;
};

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// The mean step of a turn, in microseconds; client: null for none.
absl::StatusOr<double> TimeTurn(Loop& loop, IdleClient* client) {
  double sum = 0;
  for (int32_t step = 0; step < kStepsPerTurn; ++step) {
    EPLB_ASSIGN_OR_RETURN(const double us, loop.TimeStep(client));
    sum += us;
  }
  return sum / kStepsPerTurn;
}

absl::StatusOr<Target> Measure() {
  IdleClient client;
  EPLB_RETURN_IF_ERROR(client.Init());
  Loop loop;
  EPLB_RETURN_IF_ERROR(loop.Init());
  std::vector<double> alone;
  std::vector<double> beside;
  for (int32_t turn = 0; turn <= kTurns; ++turn) {
    EPLB_ASSIGN_OR_RETURN(const double alone_us, TimeTurn(loop, nullptr));
    EPLB_ASSIGN_OR_RETURN(const double beside_us, TimeTurn(loop, &client));
    if (turn == 0) continue;  // warms up
    alone.push_back(alone_us);
    beside.push_back(beside_us);
  }
  // Otherwise the figure would not contain the session.
  EPLB_RETURN_IF_ERROR(client.Await(
      [](const ClientStats& stats) { return stats.connected && stats.reports_sent > 0; }));
  const ClientStats stats = client.stats();
  const double slowdown = Median(beside) / Median(alone) - 1;
  absl::PrintF(
      "{\"bench\": \"gemm_loop\", \"transport\": \"%s\", \"turns\": %d, \"steps_per_turn\": %d, "
      "\"votes\": %d, \"reports\": %d, \"alone_us\": %.2f, \"idle_client_us\": %.2f, "
      "\"slowdown\": %.5f, \"slowdown_of_means\": %.5f}\n",
      client.transport(), kTurns, kStepsPerTurn, stats.votes, stats.reports_sent, Median(alone),
      Median(beside), slowdown, Mean(beside) / Mean(alone) - 1);
  return LoopTarget(slowdown);
}

int Run(bool check) {
  int num_devices = 0;
  const absl::Status usable =
      cuda::ToStatus(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  if (!usable.ok() || num_devices == 0) {
    absl::FPrintF(stderr, "gemm_loop_bench needs a GPU: %s\n",
                  usable.ok() ? "there is no device" : usable.message());
    return kSkipped;
  }
  const absl::StatusOr<Target> measured = Measure();
  if (!measured.ok()) {
    absl::FPrintF(stderr, "%s\n", measured.status().ToString());
    return 1;
  }
  absl::PrintF("%s", VerdictLine(*measured));
  return ExitCode({*measured}, check);
}

}  // namespace
}  // namespace eplb::bench

int main(int argc, char** argv) {
  const eplb::bench::Arguments arguments = eplb::bench::ParseArguments(argc, argv);
  if (arguments.usable) return eplb::bench::Run(arguments.check);
  absl::FPrintF(stderr, "usage: gemm_loop_bench [--check]\n");
  return eplb::bench::kUsage;
}
