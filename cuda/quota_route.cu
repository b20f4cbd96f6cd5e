#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/count.h"
#include "cuda/kernels/turn_device.cuh"
#include "cuda/kernels/warp_device.cuh"
#include "cuda/launch_in_turn.h"
#include "cuda/load_kernels.h"
#include "cuda/quota_route.h"
#include "cuda/runtime.h"

namespace eplb::cuda {
namespace {

// Choices that a thread has in registers at once.
constexpr int32_t kRounds = 8;
// Loads that a thread begins before it uses the first of them; more of them would spill registers.
constexpr int32_t kLoads = 6;

// The tables of a block in shared memory.
class QuotaTable {
 public:
  __device__ QuotaTable(const QuotaRouteArgs& args, uint32_t* shared)
      : lists_(shared),
        limits_(lists_ + args.choices.num_experts),
        begin_(limits_ + args.num_slots),
        counters_(begin_ + args.choices.num_experts),
        slots_(reinterpret_cast<int16_t*>(counters_ +
                                          NumBins(args.choices) * (blockDim.x / Warp::kWidth))) {}

  __device__ CandidateList ListOf(int32_t expert) const { return UnpackList(lists_[expert]); }
  __device__ const uint32_t* limits() const { return limits_; }
  // [NumBins], the counters of a warp.
  __device__ uint32_t* CountersOf(const CountArgs& choices, int32_t warp) const {
    return counters_ + warp * NumBins(choices);
  }
  __device__ int32_t SlotAt(int32_t index) const { return slots_[index]; }

  __device__ void Clear(int32_t num_experts) const {
    for (int32_t expert = threadIdx.x; expert < num_experts; expert += blockDim.x) {
      begin_[expert] = 0;
    }
  }

  // After a barrier: the lists, the quotas, and the counts of the chunks before this block's.
  __device__ void Load(const QuotaRouteArgs& args) const {
    const int32_t num_experts = args.choices.num_experts;
    for (int32_t expert = threadIdx.x; expert < num_experts; expert += blockDim.x) {
      const int32_t first = args.first_slot[expert];
      lists_[expert] = PackList({first, args.first_slot[expert + 1] - first});
    }
    const int32_t num_listed = args.first_slot[num_experts];
    for (int32_t i = threadIdx.x; i < num_listed; i += blockDim.x) {
      const int32_t slot = args.replica_slot[i];
      slots_[i] = static_cast<int16_t>(slot);
      limits_[i] = QuotaOf(args.own[slot]);
    }
    AddEarlierChunks(args.choices);
  }

  // After another one.
  __device__ void AddUp(int32_t num_experts) const {
    for (int32_t expert = threadIdx.x; expert < num_experts; expert += blockDim.x) {
      AddUpQuotas(ListOf(expert), limits_);
    }
  }

  // Turns the counters of the warps into the expert's choices before the warp's.
  __device__ void AddUpWarps(const CountArgs& choices) const {
    const auto num_warps = static_cast<int32_t>(blockDim.x) / Warp::kWidth;
    for (int32_t expert = threadIdx.x; expert < choices.num_experts; expert += blockDim.x) {
      uint32_t sum = begin_[expert];
      for (int32_t first = 0; first < num_warps; first += kLoads) {
        uint32_t counts[kLoads];
#pragma unroll
        for (int32_t i = 0; i < kLoads; ++i) {
          const int32_t warp = first + i;
          counts[i] = warp < num_warps ? CountersOf(choices, warp)[expert] : 0;
        }
#pragma unroll
        for (int32_t i = 0; i < kLoads; ++i) {
          if (first + i < num_warps) CountersOf(choices, first + i)[expert] = sum;
          sum += counts[i];
        }
      }
      begin_[expert] = sum;
    }
  }

 private:
  // Threads that have the same expert share the chunks.
  __device__ void AddEarlierChunks(const CountArgs& choices) const {
    const auto num_experts = static_cast<uint32_t>(choices.num_experts);
    const uint32_t sharers = blockDim.x < num_experts ? 1 : blockDim.x / num_experts;
    const uint32_t step = num_experts * sharers;
    for (uint32_t i = threadIdx.x; i < step; i += blockDim.x) {
      uint32_t sum = 0;
      // An index of this table has 32 bits: there are at most kMaxChunks.
      const uint32_t end = blockIdx.x * num_experts;
      for (uint32_t first = i; first < end; first += kLoads * step) {
        int32_t counts[kLoads];
#pragma unroll
        for (uint32_t load = 0; load < kLoads; ++load) {
          const uint32_t index = first + load * step;
          counts[load] = index < end ? choices.chunk_counts[index] : 0;
        }
#pragma unroll
        for (const int32_t count : counts) sum += static_cast<uint32_t>(count);
      }
      atomicAdd(&begin_[i % num_experts], sum);
    }
  }

  uint32_t* lists_;     // [num_experts], see PackList
  uint32_t* limits_;    // [num_slots], see AddUpQuotas
  uint32_t* begin_;     // [num_experts], choices before those of this round of the block
  uint32_t* counters_;  // [warps, NumBins]
  int16_t* slots_;      // [num_slots]
};

// Choices of a thread, one a round. Those of a warp's lanes are neighbours, and those of its rounds
// follow each other.
template <class ExpertId>
struct Hand {
  uint32_t first;  // choice of round 0
  uint32_t end;    // end of the chunk
  int32_t rounds;
  ExpertId ids[kRounds];
  int32_t bins[kRounds];
  uint32_t places[kRounds];  // the number of the bin's choices that this warp has before it

  __device__ uint32_t IndexOf(int32_t round) const { return first + round * Warp::kWidth; }
  __device__ bool Has(int32_t round) const { return round < rounds && IndexOf(round) < end; }
};

// Takes the next choices of what is left of the block's chunk.
template <class ExpertId>
__device__ void Load(const CountArgs& choices, const Chunk& left, Hand<ExpertId>& hand) {
  const uint32_t needed =
      left.begin < left.end ? (left.end - left.begin + blockDim.x - 1) / blockDim.x : 0;
  hand.rounds = static_cast<int32_t>(Smaller(kRounds, needed));
  hand.first = left.begin + threadIdx.x / Warp::kWidth * hand.rounds * Warp::kWidth + Warp::lane();
  hand.end = left.end;
  const auto* const ids = static_cast<const ExpertId*>(choices.expert_ids);
#pragma unroll
  for (int32_t round = 0; round < kRounds; ++round) {
    if (hand.Has(round)) hand.ids[round] = ids[hand.IndexOf(round)];
  }
}

// Returns the lanes with this lane's bin, by a vote on each of its bits.
__device__ uint32_t LanesOfBin(int32_t bin, int32_t num_bins) {
  uint32_t same = Warp::kAll;
#pragma unroll 3
  for (int32_t bit = 1; bit < num_bins; bit *= 2) {
    const bool is_set = (bin & bit) != 0;
    const uint32_t set = Warp::Ballot(is_set);
    same &= is_set ? set : ~set;
  }
  return same;
}

// Counts the choices of a warp by bin.
template <class ExpertId>
__device__ void Count(const CountArgs& choices, const TokenDivider& divider, uint32_t* counters,
                      Hand<ExpertId>& hand) {
  for (int32_t bin = Warp::lane(); bin < NumBins(choices); bin += Warp::kWidth) counters[bin] = 0;
  Warp::Sync();
  const uint32_t lower_lanes = (uint32_t{1} << Warp::lane()) - 1;
#pragma unroll
  for (int32_t round = 0; round < kRounds; ++round) {
    if (round == hand.rounds) break;
    const int32_t bin = hand.Has(round)
                            ? BinOfChoice(choices, divider, hand.IndexOf(round), hand.ids[round])
                            : NoBin(choices);
    const uint32_t same = LanesOfBin(bin, NumBins(choices));
    const auto rank = static_cast<uint32_t>(__popc(same & lower_lanes));
    const uint32_t before = counters[bin];
    Warp::Sync();
    if (rank == 0) counters[bin] = before + static_cast<uint32_t>(__popc(same));
    Warp::Sync();
    hand.bins[round] = bin;
    hand.places[round] = before + rank;
  }
}

// counters: the choices of each bin before the warp's.
template <class ExpertId>
__device__ void WriteSlots(const QuotaRouteArgs& args, const TokenDivider& divider,
                           const QuotaTable& table, const uint32_t* counters,
                           const Hand<ExpertId>& hand) {
  auto* const slots = static_cast<ExpertId*>(args.slots);
#pragma unroll
  for (int32_t round = 0; round < kRounds; ++round) {
    if (!hand.Has(round)) break;
    const int32_t bin = hand.bins[round];
    int32_t slot = kNoSlot;
    if (bin < args.choices.num_experts) {
      const CandidateList list = table.ListOf(bin);
      const uint32_t place = counters[bin] + hand.places[round];
      int32_t found = IndexOfPlace(list, table.limits(), place);
      if (found == list.first + list.count) {
        Warp::AddTo(*args.beyond, int64_t{1});
        found =
            DrawnIndex(list, args.first_token + TokenOfChoice(divider, hand.IndexOf(round)), bin);
      }
      slot = table.SlotAt(found);
    }
    slots[hand.IndexOf(round)] = slot;
  }
}

// A block routes a chunk, as many choices at a time as its threads hold.
template <class ExpertId>
__global__ void __launch_bounds__(kMaxChoiceThreads)
    QuotaRouteKernel(QuotaRouteArgs args, ChoiceGrid grid, TokenDivider divider) {
  extern __shared__ uint32_t shared[];
  const CountArgs& choices = args.choices;
  const QuotaTable table(args, shared);
  uint32_t* const counters = table.CountersOf(choices, threadIdx.x / Warp::kWidth);
  table.Clear(choices.num_experts);
  AwaitTurn();
  Chunk left = ChunkAt(choices, grid, blockIdx.x);
  Hand<ExpertId> hand;
  Load(choices, left, hand);  // on its way while the table is made
  __syncthreads();
  table.Load(args);
  __syncthreads();
  table.AddUp(choices.num_experts);
  while (left.begin < left.end) {
    Count(choices, divider, counters, hand);
    __syncthreads();
    table.AddUpWarps(choices);
    __syncthreads();
    WriteSlots(args, divider, table, counters, hand);
    left.begin += kRounds * blockDim.x;
    Load(choices, left, hand);
    __syncthreads();
  }
}

template <class ExpertId>
absl::Status Launch(const QuotaRouteArgs& args, const QuotaRouteGrid& grid, cudaStream_t stream) {
  const ChoiceGrid choices = GridOfChoices(args.choices);
  EPLB_ASSIGN_OR_RETURN(const cudaLaunchConfig_t shape,
                        ShapeInTurn<&QuotaRouteKernel<ExpertId>>(
                            choices.blocks, grid.warps * Warp::kWidth, grid.shared_bytes, stream));
  return ToStatus(cudaLaunchKernelEx(&shape, QuotaRouteKernel<ExpertId>, args, choices,
                                     MakeTokenDivider(args.choices.top_k)),
                  "launch of the kernel that routes by quota");
}

}  // namespace

absl::Status LaunchQuotaRoute(const QuotaRouteArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckQuotaRouteArgs(args));
  if (args.choices.num_tokens == 0) return absl::OkStatus();
  if (args.choices.chunk_counts == nullptr) {
    return InvalidInput("route by quota needs the chunk_counts of LaunchCount, they are null");
  }
  const QuotaRouteGrid grid = ChooseQuotaRouteGrid(args.choices.num_experts, args.num_slots);
  if (args.num_slots < 1 || grid.warps == 0) {
    return InvalidInput("route by quota over ", args.choices.num_experts, " experts in ",
                        args.num_slots, " slots, expected 1 slot or more, and as many as ",
                        kMaxSharedBytes, " bytes of shared memory hold");
  }
  return args.choices.id_type == ExpertIdType::kInt32 ? Launch<int32_t>(args, grid, stream)
                                                      : Launch<int64_t>(args, grid, stream);
}

absl::Status LoadQuotaRouteKernels() {
  return LoadKernels(&QuotaRouteKernel<int32_t>, &QuotaRouteKernel<int64_t>);
}

}  // namespace eplb::cuda
