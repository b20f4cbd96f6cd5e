// Squares rows at their primaries, and exchanges the sums among the ranks of an EP group.
#include "client/rows/square_sums.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/rows/expert_tensors.h"
#include "client/rows/row_message.h"
#include "client/rows/staging.h"

namespace eplb {
namespace {

// Rows of a batch: many, so that a GPU has work, but few compared with the limit of a queue.
constexpr size_t kBatchRows = 8192;

// Layers that have tensors, rising, and the index of each layer's sums in a rank's block.
using LayerIndex = std::map<LayerId, size_t>;

LayerIndex IndexLayers(std::span<const ReplicaTensor> tensors) {
  LayerIndex layers;
  for (const ReplicaTensor& tensor : tensors) layers[tensor.rows.layer] = 0;
  size_t index = 0;
  for (auto& [layer, at] : layers) at = index++;
  return layers;
}

// A row whose squares are added, and their sum.
struct Term {
  cuda::RowCopy row;
  cuda::ElementType type;
  double* sum = nullptr;
};

// Calls visitor(local slot, expert) for every slot of the GPU that holds a primary.
template <class Visitor>
void VisitPrimaries(const Placement& placement, GpuId gpu, LayerId layer, const Visitor& visitor) {
  const int32_t first = placement.topology().FirstSlotOf(gpu).value;
  for (int32_t local = 0; local < placement.topology().SlotsOf(gpu); ++local) {
    const SlotId slot{first + local};
    const ExpertId expert = placement.ExpertIn(layer, slot);
    if (expert.value >= 0 && placement.PrimaryOf(layer, expert) == slot) visitor(local, expert);
  }
}

// Adds the squares of each term to its sum, in their order.
absl::Status AddSquares(std::span<const Term> terms, const EpGroupCall& call) {
  while (!terms.empty()) {
    std::vector<cuda::RowCopy> rows;
    while (rows.size() < std::min(terms.size(), kBatchRows) &&
           terms[rows.size()].type == terms[0].type) {
      rows.push_back(terms[rows.size()].row);
    }
    EPLB_ASSIGN_OR_RETURN(const int64_t batch, call.carrier.queue().Square(rows, terms[0].type));
    EPLB_RETURN_IF_ERROR(AwaitBatch(call.carrier.queue(), batch, call.deadline));
    const std::vector<double> squares = call.carrier.queue().TakeSquares(batch);
    for (size_t i = 0; i < squares.size(); ++i) *terms[i].sum += squares[i];
    terms = terms.subspan(rows.size());
  }
  return absl::OkStatus();
}

// Copies one row by a batch of the queue, and waits for it.
absl::Status CopyNow(const std::byte* source, std::byte* destination, size_t num_bytes,
                     const EpGroupCall& call) {
  const cuda::RowCopy row{
      .source = source, .destination = destination, .num_bytes = static_cast<int64_t>(num_bytes)};
  EPLB_ASSIGN_OR_RETURN(const int64_t batch, call.carrier.queue().Transfer({&row, 1}));
  call.carrier.SetLastBatch(batch);
  return call.carrier.AwaitLastBatch(call.deadline).status();
}

}  // namespace

absl::Status CheckSquaresFit(const Topology& topology, std::span<const ReplicaTensor> tensors,
                             int64_t staging_bytes) {
  const int64_t bytes = std::ssize(IndexLayers(tensors)) * topology.max_slots_per_gpu() *
                        static_cast<int64_t>(sizeof(double));
  if (topology.num_gpus() == 1 || RoundUpToStaging(bytes) <= staging_bytes) return absl::OkStatus();
  return ResourceExhausted("the sums of ", IndexLayers(tensors).size(), " layers are ", bytes,
                           " bytes, the staging has ", staging_bytes,
                           "; raise layers_per_chunk or give fewer layers at once");
}

absl::StatusOr<std::vector<double>> ExpertSquareSums::Sum(std::span<const ReplicaTensor> tensors,
                                                          const EpGroupCall& call) {
  const Topology& topology = call.placement.topology();
  const LayerIndex layers = IndexLayers(tensors);
  const auto slots = static_cast<size_t>(topology.max_slots_per_gpu());
  std::vector<double> mine(layers.size() * slots);  // [layers, slots]
  std::vector<Term> terms;
  for (const ReplicaTensor& tensor : tensors) {
    const ExpertTensor& rows = tensor.rows;
    double* sums = mine.data() + layers.at(rows.layer) * slots;
    VisitPrimaries(call.placement, call.gpu, rows.layer, [&](int32_t local, ExpertId) {
      terms.push_back({.row = {.source = rows.Row(local).data(), .num_bytes = rows.row_bytes},
                       .type = tensor.type,
                       .sum = sums + local});
    });
  }
  // Also without a primary on this rank, because the queue must be empty before it gets more.
  EPLB_RETURN_IF_ERROR(call.carrier.AwaitLastBatch(call.deadline).status());
  EPLB_RETURN_IF_ERROR(call.carrier.queue().Follow(call.stream));
  EPLB_RETURN_IF_ERROR(AddSquares(terms, call));
  EPLB_ASSIGN_OR_RETURN(const std::vector<double> all, Gather(mine, call));
  std::vector<double> squares(static_cast<size_t>(topology.num_layers()) *
                              static_cast<size_t>(topology.num_experts()));
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    for (const auto& [layer, index] : layers) {
      const double* sums = all.data() + static_cast<size_t>(gpu) * mine.size() + index * slots;
      double* of_layer = squares.data() + int64_t{layer.value} * topology.num_experts();
      VisitPrimaries(call.placement, GpuId{gpu}, layer,
                     [&](int32_t local, ExpertId expert) { of_layer[expert.value] = sums[local]; });
    }
  }
  return squares;
}

absl::Status ExpertSquareSums::Reserve(const Topology& topology, int64_t num_layers,
                                       int64_t staging_bytes, cuda::RowQueue& queue) {
  if (topology.num_gpus() == 1) return absl::OkStatus();
  const int64_t leaving =
      num_layers * topology.max_slots_per_gpu() * static_cast<int64_t>(sizeof(double));
  // Calls with fewer layers bring the sums of more ranks at a time, which still fit into staging.
  const int64_t arriving = RoundUpToStaging(leaving) * (topology.num_gpus() - 1);
  return Grow(std::min(leaving, staging_bytes), std::min(arriving, staging_bytes), queue);
}

absl::Status ExpertSquareSums::Grow(int64_t leaving_bytes, int64_t arriving_bytes,
                                    cuda::RowQueue& queue) {
  if (std::ssize(sent_.bytes) < leaving_bytes) {
    EPLB_ASSIGN_OR_RETURN(sent_, queue.Allocate(leaving_bytes));
    EPLB_ASSIGN_OR_RETURN(leaving_, queue.AllocatePinned(leaving_bytes));
  }
  if (std::ssize(arrived_.bytes) < arriving_bytes) {
    EPLB_ASSIGN_OR_RETURN(arrived_, queue.AllocatePinned(arriving_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> ExpertSquareSums::Gather(std::span<const double> mine,
                                                             const EpGroupCall& call) {
  const auto num_gpus = static_cast<int32_t>(call.ranks.size());
  std::vector<double> all(mine.size() * call.ranks.size());
  const auto block_of = [&](int32_t gpu) {
    return all.begin() + static_cast<ptrdiff_t>(mine.size()) * gpu;
  };
  std::copy(mine.begin(), mine.end(), block_of(call.gpu.value));
  if (num_gpus == 1 || mine.empty()) return all;
  const size_t num_bytes = mine.size_bytes();
  const int64_t stride = RoundUpToStaging(static_cast<int64_t>(num_bytes));
  const auto at_once = static_cast<int32_t>(
      std::min<int64_t>(num_gpus - 1, std::ssize(call.carrier.staging()) / stride));
  EPLB_RETURN_IF_ERROR(
      Grow(static_cast<int64_t>(num_bytes), at_once * stride, call.carrier.queue()));
  std::memcpy(leaving_.bytes.data(), mine.data(), num_bytes);
  EPLB_RETURN_IF_ERROR(CopyNow(leaving_.bytes.data(), sent_.bytes.data(), num_bytes, call));
  // In round d every rank sends to the rank at distance d.
  for (int32_t first = 1; first < num_gpus; first += at_once) {
    const int32_t end = std::min(first + at_once, num_gpus);
    RowMoves moves{
        .post_id = call.next_post_id(), .deadline = call.deadline, .stream = call.stream};
    const auto gpu_at = [&](int32_t distance) { return (call.gpu.value + distance) % num_gpus; };
    for (int32_t d = first; d < end; ++d) {
      const int64_t offset = (d - first) * stride;
      moves.sends.push_back({.to = call.ranks[static_cast<size_t>(gpu_at(d))],
                             .row = call.first_row,
                             .round = d - first,
                             .bytes = sent_.bytes.first(num_bytes),
                             .staging_offset = offset});
      moves.receives.push_back({.from = call.ranks[static_cast<size_t>(gpu_at(num_gpus - d))],
                                .row = call.first_row,
                                .round = d - first,
                                .staging_offset = offset,
                                .num_bytes = static_cast<int64_t>(num_bytes)});
    }
    EPLB_ASSIGN_OR_RETURN(const Ticket ticket, call.carrier.Post(std::move(moves)));
    EPLB_RETURN_IF_ERROR(call.carrier.Await(ticket).status());
    EPLB_RETURN_IF_ERROR(CopyNow(call.carrier.staging().data(), arrived_.bytes.data(),
                                 static_cast<size_t>((end - first) * stride), call));
    for (int32_t d = first; d < end; ++d) {
      std::memcpy(&*block_of(gpu_at(num_gpus - d)), arrived_.bytes.data() + (d - first) * stride,
                  num_bytes);
    }
  }
  return all;
}

}  // namespace eplb
