#include "client/rows/replica_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "client/rows/expert_tensors.h"
#include "client/rows/row_message.h"
#include "client/rows/staging.h"
#include "cuda/checksum.h"
#include "placement/edge_colouring.h"

namespace eplb {

namespace {

// The tensors of each layer, in the order in which they were given.
using ByLayer = std::map<LayerId, std::vector<const ReplicaTensor*>>;

ByLayer SortByLayer(std::span<const ReplicaTensor> tensors) {
  ByLayer layers;
  for (const ReplicaTensor& tensor : tensors) layers[tensor.rows.layer].push_back(&tensor);
  return layers;
}

class Planner {
 public:
  Planner(const Topology& topology, GpuId gpu, ReplicaFlow flow, int64_t staging_bytes,
          int32_t first_row)
      : topology_(topology),
        gpu_(gpu),
        flow_(flow),
        staging_bytes_(staging_bytes),
        first_row_(first_row),
        used_bytes_(static_cast<size_t>(topology_.num_gpus())),
        num_rows_(static_cast<size_t>(topology_.num_gpus())) {}

  absl::Status AddLayer(const Placement& placement, LayerId layer,
                        std::span<const ReplicaTensor* const> tensors) {
    for (int32_t expert = 0; expert < topology_.num_experts(); ++expert) {
      const std::span<const int32_t> slots = placement.ReplicasOf(layer, ExpertId{expert});
      for (size_t replica = 1; replica < slots.size(); ++replica) {
        EPLB_RETURN_IF_ERROR(AddReplica(SlotId{slots[0]}, SlotId{slots[replica]},
                                        static_cast<int32_t>(replica), tensors));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<ReplicaPost>> Finish() && {
    EPLB_RETURN_IF_ERROR(ClosePost());
    return std::move(posts_);
  }

 private:
  absl::Status AddReplica(SlotId primary, SlotId slot, int32_t replica,
                          std::span<const ReplicaTensor* const> tensors) {
    new_edge_ = true;
    for (const ReplicaTensor* tensor : tensors) {
      ReplicaMove move{
          .tensor = tensor, .source = slot, .destination = primary, .replica = replica};
      if (flow_ == ReplicaFlow::kFromPrimary) std::swap(move.source, move.destination);
      EPLB_RETURN_IF_ERROR(Add(move));
    }
    return absl::OkStatus();
  }

  absl::Status Add(ReplicaMove move) {
    const GpuId from = topology_.GpuOf(move.source);
    const GpuId to = topology_.GpuOf(move.destination);
    const int64_t staged = from == to ? 0 : RoundUpToStaging(move.tensor->rows.row_bytes);
    EPLB_RETURN_IF_ERROR(Place(to, staged, move));
    if (from != to && std::exchange(new_edge_, false)) edges_.push_back({from.value, to.value});
    is_open_ = true;
    if (from != gpu_ && to != gpu_) return absl::OkStatus();
    edge_of_move_.push_back(from == to ? kNoEdge : edges_.size() - 1);
    moves_.push_back(move);
    return absl::OkStatus();
  }

  // Room in the staging of `to`, in the next post where this one has none.
  absl::Status Place(GpuId to, int64_t staged, ReplicaMove& move) {
    const auto gpu = static_cast<size_t>(to.value);
    if (staged > staging_bytes_) {
      const ExpertTensor& rows = move.tensor->rows;
      return absl::ResourceExhaustedError(
          absl::StrCat("tensor \"", rows.name, "\": a row of ", rows.row_bytes,
                       " bytes is larger than the staging of ", staging_bytes_, " bytes"));
    }
    if (used_bytes_[gpu] + staged > staging_bytes_ || num_rows_[gpu] == kMaxReplicaRows) {
      EPLB_RETURN_IF_ERROR(ClosePost());
      new_edge_ = true;
    }
    move.row = first_row_ + num_rows_[gpu];
    move.offset = used_bytes_[gpu];
    used_bytes_[gpu] += staged;
    ++num_rows_[gpu];
    return absl::OkStatus();
  }

  absl::Status ClosePost() {
    if (!std::exchange(is_open_, false)) return absl::OkStatus();
    EPLB_ASSIGN_OR_RETURN(const EdgeColouring colouring,
                          ColourEdges(edges_, topology_.num_gpus(), topology_.num_gpus()));
    for (size_t i = 0; i < moves_.size(); ++i) {
      if (edge_of_move_[i] != kNoEdge) moves_[i].round = colouring.colours[edge_of_move_[i]];
    }
    posts_.push_back({.moves = std::move(moves_), .has_links = !edges_.empty()});
    moves_.clear();
    edges_.clear();
    edge_of_move_.clear();
    std::fill(used_bytes_.begin(), used_bytes_.end(), 0);
    std::fill(num_rows_.begin(), num_rows_.end(), 0);
    return absl::OkStatus();
  }

  static constexpr size_t kNoEdge = std::numeric_limits<size_t>::max();

  const Topology& topology_;
  const GpuId gpu_;
  const ReplicaFlow flow_;
  const int64_t staging_bytes_;
  const int32_t first_row_;
  std::vector<ReplicaPost> posts_;
  // Of the post that is being filled.
  bool is_open_ = false;
  bool new_edge_ = false;  // the next row is the first of its replica in it
  std::vector<ReplicaMove> moves_;
  std::vector<size_t> edge_of_move_;
  std::vector<BipartiteEdge> edges_;  // all GPUs' replicas that travel; their tensors share a round
  std::vector<int64_t> used_bytes_;   // [G]
  std::vector<int32_t> num_rows_;     // [G]
};

}  // namespace

int32_t FirstRowOf(std::string_view call, std::span<const ReplicaTensor> tensors) {
  std::string text(call);
  for (const ReplicaTensor& tensor : tensors) {
    absl::StrAppend(&text, "\n", tensor.rows.layer.value, " ", static_cast<int>(tensor.type), " ",
                    tensor.rows.row_bytes, " ", tensor.rows.name);
  }
  const uint64_t sum = cuda::ChecksumOnHost(std::as_bytes(std::span(text)));
  constexpr uint64_t kCalls = (uint64_t{1} << 31) / kMaxReplicaRows;
  return static_cast<int32_t>(sum % kCalls) * kMaxReplicaRows;
}

absl::StatusOr<std::vector<ReplicaPost>> PlanReplicaPosts(const Placement& placement, GpuId gpu,
                                                          std::span<const ReplicaTensor> tensors,
                                                          ReplicaFlow flow, int64_t staging_bytes,
                                                          int32_t first_row) {
  Planner planner(placement.topology(), gpu, flow, staging_bytes, first_row);
  for (const auto& [layer, of_layer] : SortByLayer(tensors)) {
    EPLB_RETURN_IF_ERROR(planner.AddLayer(placement, layer, of_layer));
  }
  return std::move(planner).Finish();
}

absl::Status CheckReplicaTensors(const Topology& topology, GpuId gpu,
                                 std::span<const ReplicaTensor> tensors, ReplicaFlow flow) {
  std::vector<ExpertTensor> rows;
  for (const ReplicaTensor& tensor : tensors) {
    if (absl::StrContains(tensor.rows.name, '\n')) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", absl::CEscape(tensor.rows.name),
                                                     "\": expected a name of one line"));
    }
    EPLB_RETURN_IF_ERROR(CheckTensor(topology, gpu, tensor.rows));
    const int64_t element_bytes = cuda::ElementBytes(tensor.type);
    if (flow == ReplicaFlow::kToPrimary && tensor.rows.row_bytes % element_bytes != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", tensor.rows.name, "\": row_bytes is ", tensor.rows.row_bytes,
                       ", expected a multiple of the element's ", element_bytes));
    }
    rows.push_back(tensor.rows);
  }
  return CheckRowsApart(rows);
}

namespace {

class PostWork {
 public:
  PostWork(const ReplicaPost& post, ReplicaFlow flow, const EpGroupCall& call)
      : post_(post), flow_(flow), call_(call), topology_(call.placement.topology()) {}

  // Once this returned, rows from other ranks are in staging.
  absl::Status Bring() const {
    if (!post_.has_links) {
      EPLB_RETURN_IF_ERROR(call_.carrier.AwaitLastBatch(call_.deadline).status());
      return call_.carrier.queue().Follow(call_.stream);
    }
    EPLB_ASSIGN_OR_RETURN(const Ticket ticket, call_.carrier.Post(Moves()));
    return call_.carrier.Await(ticket).status();
  }

  absl::Status Apply() const {
    return flow_ == ReplicaFlow::kToPrimary ? AddArrived() : CopyArrived();
  }

 private:
  bool IsHere(SlotId slot) const { return topology_.GpuOf(slot) == call_.gpu; }

  std::span<std::byte> RowIn(const ReplicaMove& move, SlotId slot) const {
    const ExpertTensor& rows = move.tensor->rows;
    return {static_cast<std::byte*>(rows.base) +
                (slot.value - topology_.FirstSlotOf(call_.gpu).value) * rows.row_stride,
            static_cast<size_t>(rows.row_bytes)};
  }

  RankId RankOf(SlotId slot) const {
    return call_.ranks[static_cast<size_t>(topology_.GpuOf(slot).value)];
  }

  RowMoves Moves() const {
    RowMoves moves{.post_id = call_.next_post_id(),
                   .sends = {},
                   .receives = {},
                   .deadline = call_.deadline,
                   .stream = call_.stream};
    for (const ReplicaMove& move : post_.moves) {
      if (move.round < 0) continue;
      if (IsHere(move.source)) {
        moves.sends.push_back({.to = RankOf(move.destination),
                               .row = move.row,
                               .round = move.round,
                               .bytes = RowIn(move, move.source),
                               .staging_offset = move.offset});
      } else {
        moves.receives.push_back({.from = RankOf(move.source),
                                  .row = move.row,
                                  .round = move.round,
                                  .staging_offset = move.offset,
                                  .num_bytes = move.tensor->rows.row_bytes});
      }
    }
    const auto by_round = [](const auto& a, const auto& b) { return a.round < b.round; };
    std::stable_sort(moves.sends.begin(), moves.sends.end(), by_round);
    std::stable_sort(moves.receives.begin(), moves.receives.end(), by_round);
    return moves;
  }

  cuda::RowCopy ArrivalOf(const ReplicaMove& move) const {
    const std::span<std::byte> row = RowIn(move, move.destination);
    const std::byte* source = move.round < 0 ? RowIn(move, move.source).data()
                                             : call_.carrier.staging().data() + move.offset;
    return {
        .source = source, .destination = row.data(), .num_bytes = static_cast<int64_t>(row.size())};
  }

  // Batches of a queue run in their order, so replica 1 of all experts is added first.
  absl::Status AddArrived() const {
    using Kind = std::pair<int32_t, cuda::ElementType>;  // replica, type
    std::map<Kind, std::vector<cuda::RowCopy>> rows;
    for (const ReplicaMove& move : post_.moves) {
      if (!IsHere(move.destination)) continue;
      rows[{move.replica, move.tensor->type}].push_back(ArrivalOf(move));
    }
    // Far more replicas than usual fill the queue.
    constexpr int32_t kBatchesAtOnce = cuda::RowQueue::kMaxBatches / 4;
    int32_t num_batches = 0;
    for (const auto& [kind, additions] : rows) {
      EPLB_ASSIGN_OR_RETURN(const int64_t batch, call_.carrier.queue().Add(additions, kind.second));
      call_.carrier.SetLastBatch(batch);
      if (++num_batches % kBatchesAtOnce != 0) continue;
      EPLB_RETURN_IF_ERROR(call_.carrier.AwaitLastBatch(call_.deadline).status());
    }
    return absl::OkStatus();
  }

  absl::Status CopyArrived() const {
    std::vector<cuda::RowCopy> copies;
    for (const ReplicaMove& move : post_.moves) {
      if (IsHere(move.destination)) copies.push_back(ArrivalOf(move));
    }
    if (copies.empty()) return absl::OkStatus();
    EPLB_ASSIGN_OR_RETURN(const int64_t batch, call_.carrier.queue().CopyUnsummed(copies));
    call_.carrier.SetLastBatch(batch);
    return absl::OkStatus();
  }

  const ReplicaPost& post_;
  const ReplicaFlow flow_;
  const EpGroupCall& call_;
  const Topology& topology_;
};

}  // namespace

absl::Status CarryReplicaRows(std::span<const ReplicaPost> posts, ReplicaFlow flow,
                              const EpGroupCall& call) {
  for (const ReplicaPost& post : posts) {
    const PostWork work(post, flow, call);
    EPLB_RETURN_IF_ERROR(work.Bring());
    EPLB_RETURN_IF_ERROR(work.Apply());
  }
  return posts.empty() ? absl::OkStatus() : call.carrier.queue().LetFollow(call.stream);
}

namespace {

// Rows of a batch: many, so that a GPU has work, and few of what a queue holds.
constexpr size_t kBatchRows = 8192;

// The layers that have tensors, rising, and where each one's sums begin in a rank's block.
using LayerIndex = std::map<LayerId, size_t>;

LayerIndex IndexLayers(std::span<const ReplicaTensor> tensors) {
  LayerIndex layers;
  for (const ReplicaTensor& tensor : tensors) layers[tensor.rows.layer] = 0;
  size_t index = 0;
  for (auto& [layer, at] : layers) at = index++;
  return layers;
}

// A row whose squares are summed, and the sum that they are added to.
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

// A batch of the queue that copies one row, once it has ended.
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
  if (topology.num_gpus() == 1 || RoundUpToStaging(bytes) <= staging_bytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the sums of ", IndexLayers(tensors).size(), " layers are ", bytes,
                   " bytes, the staging has ", staging_bytes,
                   "; raise layers_per_chunk or give fewer layers at once"));
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
      terms.push_back(
          {.row = {.source = static_cast<std::byte*>(rows.base) + local * rows.row_stride,
                   .num_bytes = rows.row_bytes},
           .type = tensor.type,
           .sum = sums + local});
    });
  }
  // Also where this rank has no primary: what the queue holds is taken before more is given to it.
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
  // Calls with fewer layers bring more ranks' sums at a time, which lie in staging all the same.
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
  // In round d every rank sends to the one d further.
  for (int32_t first = 1; first < num_gpus; first += at_once) {
    const int32_t end = std::min(first + at_once, num_gpus);
    RowMoves moves{.post_id = call.next_post_id(),
                   .sends = {},
                   .receives = {},
                   .deadline = call.deadline,
                   .stream = call.stream};
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
