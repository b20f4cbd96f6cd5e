// Times the split of a batch in the order of a stream, by the client's thread or by a kernel, over
// 10,000 batches: from the launch of route_from to the end of its stream. Beside it, in turns, the
// split of the same batch by a call.
// On a GPU, or, as split_loop_fake_gpu, on a stand-in whose kernels are their host bodies: two
// threads of the CPU and loopback memory. Exit 1 if a batch has no split by a deadline of 1 s, so
// that a busy machine passes; the default of 1 ms is not tested.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "absl/strings/str_format.h"

#include "client/split_loop.h"
#include "placement/policies/deepseek_policy.h"
#include "tests/bench/measure.h"
#include "tests/cuda/on_device.h"

namespace eplb {
namespace {

using cuda::testing::OnDevice;

constexpr int32_t kLayers = 16;
constexpr int kRounds = 10'000;

double Quantile(std::vector<double>& times, double part) {
  const auto at = times.begin() + static_cast<int64_t>(part * static_cast<double>(times.size()));
  std::nth_element(times.begin(), at, times.end());
  return 1000 * *at;
}

bool Measure(int32_t num_slots, int32_t num_gpus, bool split_on_gpu) {
  const Load popularity = bench::MakeLoad(kLayers, 256);
  const Topology topology = *Topology::Make(
      {.num_layers = kLayers, .num_experts = 256, .num_slots = num_slots, .num_gpus = num_gpus});
  const auto placement = std::make_shared<const Placement>(
      *MakeDeepseekPolicy({})->Solve({.load = popularity, .topology = topology}));
  const LoadMatrix counts = bench::BatchAround(popularity, 0.3);
  std::vector<int32_t> replicas;
  std::vector<int32_t> first_replica;
  std::vector<std::vector<int64_t>> batches(kLayers);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t expert = 0; expert < 256; ++expert) {
      first_replica.push_back(static_cast<int32_t>(replicas.size()) - layer * num_slots);
      const auto slots = placement->ReplicasOf(LayerId{layer}, ExpertId{expert});
      replicas.insert(replicas.end(), slots.begin(), slots.end());
    }
    first_replica.push_back(num_slots);
    for (int32_t gpu = 0; gpu < num_gpus; ++gpu) {
      for (int32_t expert = 0; expert < 256; ++expert) {
        batches[static_cast<size_t>(layer)].push_back(counts(layer, expert) / num_gpus);
      }
    }
  }
  const OnDevice<int32_t> replicas_on_gpu(replicas);
  const OnDevice<int32_t> first_on_gpu(first_replica);
  std::vector<OnDevice<int64_t>> gathered(batches.begin(), batches.end());
  const OnDevice<int32_t> ids(std::vector<int32_t>(1));
  const OnDevice<int64_t> row(std::vector<int64_t>(256));
  const DeviceTables tables{.num_layers = kLayers,
                            .num_experts = 256,
                            .num_slots = num_slots,
                            .replicas = replicas_on_gpu.data(),
                            .first_replica = first_on_gpu.data()};
  const OnDevice<int32_t> number{std::vector<int32_t>(kLayers)};
  const std::vector<int32_t> newest(kLayers);
  BatchSplits splits(placement, 0);
  const auto queue = *cuda::MakeStreamRowQueue({});
  const auto loop = *SplitLoop::Make(
      {.max_tokens = 1, .top_k = 1, .deadline = absl::Seconds(1), .split_on_gpu = split_on_gpu},
      {.topology = topology,
       .self = GpuId{0},
       .device = 0,
       .tables = tables,
       .table_numbers = number.data(),
       .newest_numbers = newest.data(),
       .splits = splits,
       .queue = *queue});
  const cuda::Stream stream = *cuda::MakeStream();
  std::vector<int64_t> quotas(static_cast<size_t>(num_slots));
  std::vector<int64_t> own(static_cast<size_t>(num_slots));
  std::vector<double> exchanges;
  std::vector<double> calls;
  for (int round = 0; round < kRounds + kLayers; ++round) {
    const int32_t layer = round % kLayers;
    const cuda::CountArgs choices{
        .expert_ids = ids.data(), .num_tokens = 1, .top_k = 1, .num_experts = 256};
    (void)loop->CountFor(layer, choices, row.data(), stream.get());
    (void)cudaStreamSynchronize(stream.get());
    const double exchange = bench::Milliseconds([&] {
      (void)loop->RouteFrom(layer, gathered[static_cast<size_t>(layer)].data(), ids.data(),
                            stream.get());
      (void)cudaStreamSynchronize(stream.get());
    });
    const double call = bench::Milliseconds([&] {
      (void)splits.Split(LayerId{layer}, {.by_gpu = batches[static_cast<size_t>(layer)]},
                         {.self = GpuId{0}, .quotas = quotas, .own = own});
    });
    if (round < kLayers) continue;  // prepares the layer
    exchanges.push_back(exchange);
    calls.push_back(call);
  }
  const SplitLoopFigures figures = loop->figures();
  absl::PrintF(R"({"bench": "split_loop", "num_slots": %d, "num_gpus": %d, "split_on_gpu": %d, )"
               R"("p50_us": %.1f, "p90_us": %.1f, "p999_us": %.1f, "call_p50_us": %.1f, )"
               R"("call_p999_us": %.1f, "batches": %d, "late": %d})"
               "\n",
               num_slots, num_gpus, split_on_gpu, Quantile(exchanges, .5), Quantile(exchanges, .9),
               Quantile(exchanges, .999), Quantile(calls, .5), Quantile(calls, .999),
               figures.batches, figures.late);
  return figures.late + figures.refused == 0;
}

}  // namespace
}  // namespace eplb

int main() {
  int devices = 0;
  const absl::Status status =
      eplb::cuda::ToStatus(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  if (!status.ok() || devices == 0) {
    absl::FPrintF(stderr, "split_loop_bench needs a GPU: %s\n",
                  status.ok() ? "there is no device" : status.message());
    return 77;
  }
  bool all_split = true;
  for (const bool split_on_gpu : {false, true}) {
    all_split = eplb::Measure(288, 32, split_on_gpu) && all_split;
    all_split = eplb::Measure(384, 64, split_on_gpu) && all_split;
  }
  return all_split ? 0 : 1;
}
