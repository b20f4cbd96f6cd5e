#include "base/status_macros.h"
#include "cuda/kernels/histogram_device.cuh"
#include "cuda/kernels/turn_device.cuh"
#include "cuda/launch_in_turn.h"
#include "cuda/load_kernels.h"
#include "cuda/route.h"

namespace eplb::cuda {
namespace {

// A block's copy of a table without thresholds, in shared memory: four bytes a bin and two a slot.
class PackedTable {
 public:
  __device__ PackedTable(const RouteArgs& args, uint32_t* shared)
      : lists_(shared), slots_(reinterpret_cast<int16_t*>(shared + NumBins(args.choices))) {}

  // The work of one thread of the block.
  __device__ void Load(const RouteArgs& args) const {
    const TableInMemory table(args);
    for (int32_t bin = threadIdx.x; bin < NumBins(args.choices); bin += blockDim.x) {
      const CandidateList list = table.ListOf(bin);
      lists_[bin] = static_cast<uint32_t>(list.first) | static_cast<uint32_t>(list.count) << 16;
    }
    for (int32_t place = threadIdx.x; place <= args.table.num_slots; place += blockDim.x) {
      slots_[place] = static_cast<int16_t>(table.SlotAt(place));
    }
  }

  __device__ CandidateList ListOf(int32_t bin) const {
    const uint32_t list = lists_[bin];
    return {static_cast<int32_t>(list & 0xffff), static_cast<int32_t>(list >> 16)};
  }
  __device__ int32_t SlotAt(int32_t place) const { return slots_[place]; }
  __device__ int32_t CandidateOf(const CandidateList& list, uint32_t draw) const {
    return EqualCandidate(list, draw);
  }

 private:
  uint32_t* lists_;  // [NumBins], first | count << 16
  int16_t* slots_;   // [num_slots + 1]
};

// A block routes a chunk by its own copy of the table, all of whose candidates have equal shares.
// If there are counters, it counts in a histogram, as CountKernel does.
template <class ExpertId>
__global__ void __launch_bounds__(kMaxChoiceThreads)
    RouteKernel(RouteArgs args, ChoiceGrid grid, TokenDivider divider) {
  extern __shared__ uint32_t histogram[];
  const CountArgs& choices = args.choices;
  const bool counts = choices.counts != nullptr;
  const PackedTable table(args, histogram + NumBins(choices));
  ClearHistogram(choices, histogram);
  TakeTurn();
  const Chunk chunk = ChunkAt(choices, grid, blockIdx.x);
  const uint32_t end_of_quads = Smaller(EndOfQuads<ExpertId>(chunk, choices.expert_ids),
                                        EndOfQuads<ExpertId>(chunk, args.slots));
  // Ids are on their way while the table is read, and while the quad before is routed.
  uint32_t first = chunk.begin + kQuad * threadIdx.x;
  IdQuad<ExpertId> next{};
  if (first < end_of_quads) next = LoadQuad<ExpertId>(choices, first);
  table.Load(args);
  __syncthreads();
  while (first < end_of_quads) {
    const IdQuad<ExpertId> chosen = next;
    const uint32_t routed = first;
    first += kQuad * blockDim.x;
    if (first < end_of_quads) next = LoadQuad<ExpertId>(choices, first);
    const BinQuad quad = RouteQuad(args, divider, table, routed, chosen);
    if (!counts) continue;
    for (const int32_t bin : quad.bins) AddBin(choices, bin, histogram, true);
  }
  for (uint32_t index = end_of_quads + threadIdx.x; index < chunk.end; index += blockDim.x) {
    const int32_t bin = RouteChoice<ExpertId>(args, divider, table, index);
    if (counts) AddBin(choices, bin, histogram, true);
  }
  if (!counts) return;
  __syncthreads();
  MergeHistogram(choices, histogram);
}

// The same for any table, which stays in memory. fits: there is a histogram.
template <class ExpertId>
__global__ void __launch_bounds__(kMaxChoiceThreads)
    RouteByAnyTableKernel(RouteArgs args, ChoiceGrid grid, TokenDivider divider, bool fits) {
  extern __shared__ uint32_t histogram[];
  const CountArgs& choices = args.choices;
  const TableInMemory table(args);
  if (fits) ClearHistogram(choices, histogram);
  TakeTurn();
  __syncthreads();
  const Chunk chunk = ChunkAt(choices, grid, blockIdx.x);
  for (uint32_t index = chunk.begin + threadIdx.x; index < chunk.end; index += blockDim.x) {
    const int32_t bin = RouteChoice<ExpertId>(args, divider, table, index);
    if (choices.counts != nullptr) AddBin(choices, bin, histogram, fits);
  }
  if (!fits || choices.counts == nullptr) return;
  __syncthreads();
  MergeHistogram(choices, histogram);
}

template <class ExpertId>
absl::Status Launch(const RouteArgs& args, cudaStream_t stream) {
  const CountArgs& choices = args.choices;
  const ChoiceGrid grid = GridOfChoices(choices);
  const TokenDivider divider = MakeTokenDivider(choices.top_k);
  const int32_t packed_bytes = PackedTableBytes(choices.num_experts, args.table.num_slots);
  if (packed_bytes > 0 && args.table.thresholds == nullptr) {
    return LaunchInTurn("launch of the route kernel", &RouteKernel<ExpertId>,
                        {grid.blocks, grid.threads, packed_bytes}, stream, args, grid, divider);
  }
  const int32_t histogram_bytes = HistogramBytes(choices.num_experts);
  return LaunchInTurn("launch of the route kernel", &RouteByAnyTableKernel<ExpertId>,
                      {grid.blocks, grid.threads, histogram_bytes}, stream, args, grid, divider,
                      histogram_bytes > 0);
}

}  // namespace

absl::Status LaunchRoute(const RouteArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckRouteArgs(args));
  if (args.choices.num_tokens == 0) return absl::OkStatus();
  return args.choices.id_type == ExpertIdType::kInt32 ? Launch<int32_t>(args, stream)
                                                      : Launch<int64_t>(args, stream);
}

absl::Status LoadRouteKernels() {
  return LoadKernels(&RouteKernel<int32_t>, &RouteKernel<int64_t>, &RouteByAnyTableKernel<int32_t>,
                     &RouteByAnyTableKernel<int64_t>);
}

}  // namespace eplb::cuda
