// Times the kernels on a GPU, one JSON object a line: the batched row copy with and without
// checksums against cudaMemcpyAsync of the same rows; count, route and both in one pass, beside a
// copy of the same bytes; routing by quota; and the split of each of 58 layers. Repetitions are in
// one captured graph, so that the times are the device's; latency_us is one launch from the host
// and the wait for it. Medians. Figures that have a target are judged on a line each, by
// what the device can reach; with --check a miss is exit 1. Exit 77 without a usable GPU.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "cuda/copy.h"
#include "cuda/count.h"
#include "cuda/quota_route.h"
#include "cuda/route.h"
#include "cuda/runtime.h"
#include "cuda/split.h"
#include "placement/policies/deepseek_policy.h"
#include "placement/split/split_graph.h"
#include "tests/bench/measure.h"
#include "tests/bench/targets.h"

namespace eplb::cuda {
namespace {

constexpr int kUsage = 2;
constexpr int kSkipped = 77;
constexpr int kRuns = 21;
constexpr uint64_t kSeed = 500;

using bench::Target;
using Targets = std::vector<Target>;

using Work = std::function<absl::Status(cudaStream_t)>;
using Graph = std::unique_ptr<cudaGraph_t, HandleDeleter<cudaGraph_t, cudaGraphDestroy>>;
using GraphExec =
    std::unique_ptr<cudaGraphExec_t, HandleDeleter<cudaGraphExec_t, cudaGraphExecDestroy>>;

template <class T>
absl::StatusOr<DeviceMemory> ToDevice(const std::vector<T>& values) {
  const size_t size = values.size() * sizeof(T);
  EPLB_ASSIGN_OR_RETURN(DeviceMemory memory, MakeDeviceMemory(static_cast<int64_t>(size)));
  EPLB_RETURN_IF_ERROR(ToStatus(
      cudaMemcpy(memory.get(), values.data(), size, cudaMemcpyHostToDevice), "cudaMemcpy"));
  return memory;
}

absl::Status CopyBytes(void* to, const void* from, int64_t num_bytes, cudaStream_t stream) {
  return ToStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(num_bytes), cudaMemcpyDeviceToDevice, stream),
      "cudaMemcpyAsync");
}

// Microseconds of the median run of `function`.
template <class Function>
absl::StatusOr<double> MedianTime(const Function& function) {
  std::vector<double> times;
  // Waits for work on the default stream, because the streams of the benches do not wait for it.
  EPLB_RETURN_IF_ERROR(ToStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  for (int run = 0; run < kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    EPLB_RETURN_IF_ERROR(function());
    const std::chrono::duration<double, std::micro> spent =
        std::chrono::steady_clock::now() - start;
    times.push_back(spent.count());
  }
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2];
}

// From the launch until the host knows of the end.
absl::StatusOr<double> Latency(const Work& work, cudaStream_t stream) {
  return MedianTime([&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(work(stream));
    return ToStatus(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  });
}

// Returns the seconds of one of `repetitions` in a graph, which share its launch and the wait.
absl::StatusOr<double> DeviceTime(const Work& work, int repetitions, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(ToStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                                "cudaStreamBeginCapture"));
  absl::Status added;
  for (int i = 0; i < repetitions && added.ok(); ++i) added = work(stream);
  cudaGraph_t captured = nullptr;
  EPLB_RETURN_IF_ERROR(ToStatus(cudaStreamEndCapture(stream, &captured), "cudaStreamEndCapture"));
  const Graph graph(captured);
  EPLB_RETURN_IF_ERROR(added);
  cudaGraphExec_t instance = nullptr;
  EPLB_RETURN_IF_ERROR(
      ToStatus(cudaGraphInstantiate(&instance, captured, 0), "cudaGraphInstantiate"));
  const GraphExec exec(instance);
  EPLB_ASSIGN_OR_RETURN(const double time, Latency(
                                               [&](cudaStream_t s) {
                                                 return ToStatus(cudaGraphLaunch(exec.get(), s),
                                                                 "cudaGraphLaunch");
                                               },
                                               stream));
  return time / repetitions;
}

// Rows of one size, one behind the other.
absl::StatusOr<Targets> MeasureCopy(int32_t num_rows, int64_t row_bytes, cudaStream_t stream) {
  const int64_t total = num_rows * row_bytes;
  EPLB_ASSIGN_OR_RETURN(const DeviceMemory source, MakeDeviceMemory(total));
  EPLB_ASSIGN_OR_RETURN(const DeviceMemory destination, MakeDeviceMemory(total));
  EPLB_ASSIGN_OR_RETURN(const DeviceMemory checksums, MakeDeviceMemory(int64_t{8} * num_rows));
  const auto* from = static_cast<const std::byte*>(source.get());
  auto* to = static_cast<std::byte*>(destination.get());
  EPLB_RETURN_IF_ERROR(
      ToStatus(cudaMemset(source.get(), 0x5a, static_cast<size_t>(total)), "cudaMemset"));
  std::vector<RowCopy> rows;
  rows.reserve(static_cast<size_t>(num_rows));
  for (int64_t row = 0; row < num_rows; ++row) {
    rows.push_back({from + row * row_bytes, to + row * row_bytes, row_bytes});
  }
  std::vector<TiledRow> table(rows.size());
  const int64_t num_tiles = TileRows(rows, table);
  EPLB_ASSIGN_OR_RETURN(const DeviceMemory copies, ToDevice(table));
  for (TiledRow& row : table) row.copy.destination = nullptr;
  EPLB_ASSIGN_OR_RETURN(const DeviceMemory sums, ToDevice(table));
  CopyArgs args{.rows = static_cast<const TiledRow*>(copies.get()),
                .num_rows = num_rows,
                .num_tiles = num_tiles};
  constexpr int kRepetitions = 10;
  const auto time_of = [&](const CopyArgs& work, int32_t max_blocks) {
    return DeviceTime([&](cudaStream_t s) { return LaunchCopyRows(work, max_blocks, s); },
                      kRepetitions, stream);
  };
  EPLB_ASSIGN_OR_RETURN(const double memcpy_us,
                        DeviceTime(
                            [&](cudaStream_t s) {
                              absl::Status status;
                              for (const RowCopy& row : rows) {
                                status.Update(CopyBytes(row.destination, row.source, row_bytes, s));
                              }
                              return status;
                            },
                            kRepetitions, stream));
  EPLB_ASSIGN_OR_RETURN(const double plain_us, time_of(args, 0));
  EPLB_ASSIGN_OR_RETURN(const double narrow_us, time_of(args, 32));
  args.checksums = static_cast<uint64_t*>(checksums.get());
  EPLB_ASSIGN_OR_RETURN(const double fused_us, time_of(args, 0));
  args.rows = static_cast<const TiledRow*>(sums.get());
  EPLB_ASSIGN_OR_RETURN(const double checksum_us, time_of(args, 0));
  absl::PrintF(
      "{\"bench\": \"copy\", \"rows\": %d, \"row_bytes\": %d, \"memcpy_us\": %.2f, \"copy_us\": "
      "%.2f, \"copy_32_blocks_us\": %.2f, \"copy_and_checksum_us\": %.2f, \"checksum_us\": %.2f, "
      "\"copy_gb_per_s\": %.0f, \"copy_to_memcpy\": %.3f, \"fused_to_copy\": %.3f}\n",
      num_rows, row_bytes, memcpy_us, plain_us, narrow_us, fused_us, checksum_us,
      2e-3 * static_cast<double>(total) / plain_us, plain_us / memcpy_us, fused_us / plain_us);
  return bench::CopyTargets(num_rows, row_bytes, plain_us / memcpy_us, fused_us / plain_us);
}

constexpr int32_t kRouteExperts = 256;
constexpr int32_t kRouteSlots = 288;
constexpr int32_t kTopK = 8;

// The router's choices among 256 experts, whose popularity falls by rank, and what their kernels
// read and write.
template <class ExpertId>
struct RouteBatch {
  DeviceMemory ids, slots, counters, chunk_counts, beyond;
  CountArgs choices;
  std::vector<int64_t> counts;  // choices of each expert
};

template <class ExpertId>
absl::StatusOr<RouteBatch<ExpertId>> MakeRouteBatch(int64_t num_tokens) {
  std::mt19937_64 random(kSeed);
  std::vector<double> popularity(kRouteExperts);
  for (size_t rank = 0; rank < popularity.size(); ++rank) {
    popularity[rank] = 1.0 / static_cast<double>(rank + 10);
  }
  std::discrete_distribution<int32_t> draw(popularity.begin(), popularity.end());
  std::vector<ExpertId> ids(static_cast<size_t>(num_tokens * kTopK));
  RouteBatch<ExpertId> batch;
  batch.counts.resize(kRouteExperts);
  for (ExpertId& id : ids) {
    id = draw(random);
    ++batch.counts[static_cast<size_t>(id)];
  }
  EPLB_ASSIGN_OR_RETURN(batch.ids, ToDevice(ids));
  EPLB_ASSIGN_OR_RETURN(batch.slots, ToDevice(ids));
  EPLB_ASSIGN_OR_RETURN(batch.counters, ToDevice(std::vector<int64_t>(kRouteExperts + 1)));
  EPLB_ASSIGN_OR_RETURN(batch.beyond, ToDevice(std::vector<int64_t>(1)));
  auto* const counters = static_cast<int64_t*>(batch.counters.get());
  batch.choices = {.expert_ids = batch.ids.get(),
                   .id_type = sizeof(ExpertId) == 4 ? ExpertIdType::kInt32 : ExpertIdType::kInt64,
                   .num_tokens = num_tokens,
                   .top_k = kTopK,
                   .num_experts = kRouteExperts,
                   .counts = counters,
                   .out_of_range = counters + kRouteExperts};
  EPLB_ASSIGN_OR_RETURN(batch.chunk_counts, MakeDeviceMemory(ChunkCountsBytes(batch.choices)));
  return batch;
}

// 288 slots, in which the most popular experts have replicas until these have `percent` of all
// choices; with 0 the slots of replicas are not in use.
std::vector<int32_t> SlotsWithReplicas(const std::vector<int64_t>& counts, int32_t percent) {
  std::vector<int32_t> slots(kRouteSlots, -1);
  for (int32_t expert = 0; expert < kRouteExperts; ++expert) {
    slots[static_cast<size_t>(expert)] = expert;
  }
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  int32_t replicated = 0;
  for (int64_t sum = 0; sum * 100 < all * percent; ++replicated) {
    sum += counts[static_cast<size_t>(replicated)];
  }
  for (int32_t slot = kRouteExperts; slot < kRouteSlots && replicated > 0; ++slot) {
    slots[static_cast<size_t>(slot)] = slot % replicated;
  }
  return slots;
}

template <class ExpertId>
absl::StatusOr<Targets> MeasureRoute(int64_t num_tokens, int32_t percent, cudaStream_t stream) {
  EPLB_ASSIGN_OR_RETURN(const RouteBatch<ExpertId> batch, MakeRouteBatch<ExpertId>(num_tokens));
  EPLB_ASSIGN_OR_RETURN(
      const HostRouteTable table,
      MakeRouteTable({.physical_to_logical = SlotsWithReplicas(batch.counts, percent),
                      .num_experts = kRouteExperts}));
  EPLB_ASSIGN_OR_RETURN(const DeviceMemory candidates, ToDevice(table.candidates));
  EPLB_ASSIGN_OR_RETURN(const DeviceMemory first_candidate, ToDevice(table.first_candidate));
  const RouteArgs fused{
      .choices = batch.choices,
      .table = {.candidates = static_cast<const int32_t*>(candidates.get()),
                .first_candidate = static_cast<const int32_t*>(first_candidate.get()),
                .num_slots = kRouteSlots},
      .slots = batch.slots.get()};
  RouteArgs route = fused;
  route.choices.counts = nullptr;
  route.choices.out_of_range = nullptr;
  const auto num_bytes = num_tokens * kTopK * static_cast<int64_t>(sizeof(ExpertId));
  constexpr int kRepetitions = 100;
  const auto time_of = [&](const Work& work) { return DeviceTime(work, kRepetitions, stream); };
  const Work launch_fused = [&](cudaStream_t s) { return LaunchRoute(fused, s); };
  EPLB_ASSIGN_OR_RETURN(const double memcpy_us, time_of([&](cudaStream_t s) {
                          return CopyBytes(batch.slots.get(), batch.ids.get(), num_bytes, s);
                        }));
  EPLB_ASSIGN_OR_RETURN(const double count_us,
                        time_of([&](cudaStream_t s) { return LaunchCount(fused.choices, s); }));
  EPLB_ASSIGN_OR_RETURN(const double route_us,
                        time_of([&](cudaStream_t s) { return LaunchRoute(route, s); }));
  EPLB_ASSIGN_OR_RETURN(const double fused_us, time_of(launch_fused));
  EPLB_ASSIGN_OR_RETURN(const double latency_us, Latency(launch_fused, stream));
  absl::PrintF(
      "{\"bench\": \"route\", \"tokens\": %d, \"top_k\": %d, \"id_bytes\": %d, "
      "\"replicated_percent\": %d, \"memcpy_us\": %.2f, \"count_us\": %.2f, \"route_us\": %.2f, "
      "\"count_and_route_us\": %.2f, \"latency_us\": %.2f}\n",
      num_tokens, kTopK, sizeof(ExpertId), percent, memcpy_us, count_us, route_us, fused_us,
      latency_us);
  return bench::RouteTargets(num_tokens, kTopK, sizeof(ExpertId), fused_us);
}

// Slots of a split whose quotas the choices fill, an expert's replicas alike.
template <class ExpertId>
absl::StatusOr<Targets> MeasureQuotaRoute(int64_t num_tokens, cudaStream_t stream) {
  EPLB_ASSIGN_OR_RETURN(const RouteBatch<ExpertId> batch, MakeRouteBatch<ExpertId>(num_tokens));
  EPLB_ASSIGN_OR_RETURN(const HostRouteTable table,
                        MakeRouteTable({.physical_to_logical = SlotsWithReplicas(batch.counts, 50),
                                        .num_experts = kRouteExperts}));
  std::vector<int64_t> own(kRouteSlots);
  for (size_t expert = 0; expert < kRouteExperts; ++expert) {
    int64_t left = batch.counts[expert];
    const int32_t end = table.first_candidate[expert + 1];
    for (int32_t i = table.first_candidate[expert]; i < end; ++i) {
      const int64_t quota = left / (end - i);
      own[static_cast<size_t>(table.candidates[static_cast<size_t>(i)])] = quota;
      left -= quota;
    }
  }
  EPLB_ASSIGN_OR_RETURN(const DeviceMemory first_slot, ToDevice(table.first_candidate));
  EPLB_ASSIGN_OR_RETURN(const DeviceMemory replica_slot, ToDevice(table.candidates));
  EPLB_ASSIGN_OR_RETURN(const DeviceMemory quotas, ToDevice(own));
  QuotaRouteArgs args{.choices = batch.choices,
                      .first_slot = static_cast<const int32_t*>(first_slot.get()),
                      .replica_slot = static_cast<const int32_t*>(replica_slot.get()),
                      .own = static_cast<const int64_t*>(quotas.get()),
                      .num_slots = kRouteSlots,
                      .slots = batch.slots.get(),
                      .beyond = static_cast<int64_t*>(batch.beyond.get())};
  args.choices.chunk_counts = static_cast<int32_t*>(batch.chunk_counts.get());
  constexpr int kRepetitions = 100;
  const Work both = [&](cudaStream_t s) {
    absl::Status status = LaunchCount(args.choices, s);
    status.Update(LaunchQuotaRoute(args, s));
    return status;
  };
  EPLB_ASSIGN_OR_RETURN(const double both_us, DeviceTime(both, kRepetitions, stream));
  EPLB_ASSIGN_OR_RETURN(
      const double route_us,
      DeviceTime([&](cudaStream_t s) { return LaunchQuotaRoute(args, s); }, kRepetitions, stream));
  EPLB_ASSIGN_OR_RETURN(const double latency_us, Latency(both, stream));
  absl::PrintF(
      "{\"bench\": \"quota_route\", \"tokens\": %d, \"top_k\": %d, \"id_bytes\": %d, "
      "\"quota_route_us\": %.2f, \"count_and_quota_route_us\": %.2f, \"latency_us\": %.2f}\n",
      num_tokens, kTopK, sizeof(ExpertId), route_us, both_us, latency_us);
  return bench::QuotaRouteTargets(num_tokens, kTopK, sizeof(ExpertId), both_us);
}

// 58 layers of 256 experts on the placement of `deepseek` for their popularity, and a batch around
// it: arrays on the device. Each source has an equal part of each count.
struct SplitLayers {
  static constexpr int32_t kLayers = 58;
  static constexpr int32_t kExperts = 256;

  SplitArgs args;
  DeviceMemory tables, counts, quotas, own, refused;
};

absl::StatusOr<SplitLayers> MakeSplitLayers(const SplitGraph& graph, const LoadMatrix& batch,
                                            int32_t num_sources) {
  std::vector<int64_t> parts;
  for (int32_t source = 0; source < num_sources; ++source) {
    for (const int64_t count : batch.reshaped<Eigen::RowMajor>()) {
      parts.push_back(count / num_sources + (source < count % num_sources ? 1 : 0));
    }
  }
  const SplitShape& shape = graph.Tables().shape;
  std::vector<std::byte> packed(static_cast<size_t>(SplitTableBytes(shape)));
  EPLB_RETURN_IF_ERROR(PackSplitTables(graph.Tables(), packed));
  SplitLayers layers;
  EPLB_ASSIGN_OR_RETURN(layers.tables, ToDevice(packed));
  EPLB_ASSIGN_OR_RETURN(layers.counts, ToDevice(parts));
  EPLB_ASSIGN_OR_RETURN(layers.quotas, MakeDeviceMemory(int64_t{8} * shape.num_slots));
  EPLB_ASSIGN_OR_RETURN(layers.own, MakeDeviceMemory(int64_t{8} * shape.num_slots));
  EPLB_ASSIGN_OR_RETURN(layers.refused, MakeDeviceMemory(sizeof(int32_t)));
  layers.args = {.shape = shape,
                 .tables = static_cast<const std::byte*>(layers.tables.get()),
                 .num_layers = 1,
                 .num_sources = num_sources,
                 .quotas = static_cast<int64_t*>(layers.quotas.get()),
                 .refused = static_cast<int32_t*>(layers.refused.get()),
                 .source = num_sources / 2,
                 .gpus_of_node = 8};
  return layers;
}

struct SplitConfig {
  int32_t num_slots;
  int32_t num_gpus;
  int32_t num_sources;
  bool with_own;
  double tolerance;
};

// Splits each layer by a launch of its own. The counts of a layer are those of an all-gather of
// this layer alone.
absl::StatusOr<Targets> MeasureSplit(const SplitConfig& config, cudaStream_t stream) {
  constexpr int32_t kLayers = SplitLayers::kLayers;
  constexpr int32_t kExperts = SplitLayers::kExperts;
  const Load popularity = bench::MakeLoad(kLayers, kExperts);
  EPLB_ASSIGN_OR_RETURN(const Topology topology, Topology::Make({.num_layers = kLayers,
                                                                 .num_experts = kExperts,
                                                                 .num_slots = config.num_slots,
                                                                 .num_gpus = config.num_gpus}));
  EPLB_ASSIGN_OR_RETURN(const Placement placement,
                        MakeDeepseekPolicy({})->Solve({.load = popularity, .topology = topology}));
  EPLB_ASSIGN_OR_RETURN(const SplitGraph graph,
                        SplitGraph::Make(placement, {.tolerance = config.tolerance}));
  const LoadMatrix batch = bench::BatchAround(popularity, 0.2);
  std::vector<double> times;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    const LoadMatrix row = batch.row(layer);
    EPLB_ASSIGN_OR_RETURN(SplitLayers layers, MakeSplitLayers(graph, row, config.num_sources));
    layers.args.first_layer = layer;
    layers.args.counts = static_cast<const int64_t*>(layers.counts.get());
    if (config.with_own) layers.args.own = static_cast<int64_t*>(layers.own.get());
    constexpr int kRepetitions = 20;
    EPLB_ASSIGN_OR_RETURN(const double time,
                          DeviceTime([&](cudaStream_t s) { return LaunchSplit(layers.args, s); },
                                     kRepetitions, stream));
    times.push_back(time);
  }
  std::sort(times.begin(), times.end());
  const double p50 = times[times.size() / 2];
  const double p90 = times[times.size() * 9 / 10];
  absl::PrintF(
      "{\"bench\": \"split\", \"timed\": \"one of 20 launches of a layer in a graph\", "
      "\"experts\": %d, \"slots\": %d, \"gpus\": %d, \"sources\": %d, \"own\": %v, "
      "\"tolerance\": %.2f, \"layers\": %d, \"p50_us\": %.2f, \"p90_us\": %.2f, "
      "\"max_us\": %.2f}\n",
      kExperts, config.num_slots, config.num_gpus, config.num_sources, config.with_own,
      config.tolerance, kLayers, p50, p90, times.back());
  if (!config.with_own) return Targets{};
  return bench::SplitTargets(config.num_gpus, config.tolerance, p50, times.back());
}

// Adds what a measurement is held to, if it could be made.
absl::Status Add(absl::StatusOr<Targets> measured, Targets& all) {
  EPLB_RETURN_IF_ERROR(measured.status());
  for (Target& target : *measured) all.push_back(std::move(target));
  return absl::OkStatus();
}

absl::Status MeasureRoutes(Targets& all, cudaStream_t stream) {
  for (const int64_t num_tokens : {4096, 16'384, 131'072}) {
    for (const int32_t percent : {0, 12, 50}) {
      EPLB_RETURN_IF_ERROR(Add(MeasureRoute<int32_t>(num_tokens, percent, stream), all));
      EPLB_RETURN_IF_ERROR(Add(MeasureRoute<int64_t>(num_tokens, percent, stream), all));
    }
    EPLB_RETURN_IF_ERROR(Add(MeasureQuotaRoute<int32_t>(num_tokens, stream), all));
    EPLB_RETURN_IF_ERROR(Add(MeasureQuotaRoute<int64_t>(num_tokens, stream), all));
  }
  return absl::OkStatus();
}

absl::Status MeasureSplits(Targets& all, cudaStream_t stream) {
  for (const auto& [num_slots, num_gpus] : {std::pair{288, 32}, {384, 64}}) {
    for (const double tolerance : {0.0, 0.01}) {
      for (const auto& [num_sources, with_own] :
           {std::pair{1, false}, {num_gpus, false}, {num_gpus, true}}) {
        EPLB_RETURN_IF_ERROR(Add(
            MeasureSplit({num_slots, num_gpus, num_sources, with_own, tolerance}, stream), all));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status MeasureAll(Targets& all) {
  EPLB_ASSIGN_OR_RETURN(const Stream stream, MakeStream());
  constexpr int64_t kExpertBytes = 44'040'192;  // an expert of DeepSeek-V3 in fp8
  constexpr int64_t kScaleBytes = 10'752;       // scales of that expert
  EPLB_RETURN_IF_ERROR(Add(MeasureCopy(32, kExpertBytes, stream.get()), all));
  EPLB_RETURN_IF_ERROR(Add(MeasureCopy(1, kExpertBytes, stream.get()), all));
  EPLB_RETURN_IF_ERROR(Add(MeasureCopy(1024, kScaleBytes, stream.get()), all));
  EPLB_RETURN_IF_ERROR(MeasureRoutes(all, stream.get()));
  return MeasureSplits(all, stream.get());
}

int Run(bool check) {
  int num_devices = 0;
  const absl::Status usable = ToStatus(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  if (!usable.ok() || num_devices == 0) {
    absl::FPrintF(stderr, "cuda_bench needs a GPU: %s\n",
                  usable.ok() ? "there is no device" : usable.message());
    return kSkipped;
  }
  cudaDeviceProp properties{};
  const absl::Status named =
      ToStatus(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  if (!named.ok()) {
    absl::FPrintF(stderr, "%s\n", named.ToString());
    return 1;
  }
  absl::PrintF("{\"bench\": \"device\", \"name\": \"%s\", \"capability\": \"%d.%d\"}\n",
               properties.name, properties.major, properties.minor);
  Targets targets;
  if (const absl::Status status = MeasureAll(targets); !status.ok()) {
    absl::FPrintF(stderr, "%s\n", status.ToString());
    return 1;
  }
  targets = bench::OnDevice(std::move(targets), properties.name);
  for (const Target& target : targets) absl::PrintF("%s", bench::VerdictLine(target));
  return bench::ExitCode(targets, check);
}

}  // namespace
}  // namespace eplb::cuda

int main(int argc, char** argv) {
  const eplb::bench::Arguments arguments = eplb::bench::ParseArguments(argc, argv);
  if (arguments.usable) return eplb::cuda::Run(arguments.check);
  absl::FPrintF(stderr, "usage: cuda_bench [--check]\n");
  return eplb::cuda::kUsage;
}
