// Client::Carry: all registered rows go to another placement and back, and the current version
// stays.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/client_impl.h"

namespace eplb {
namespace {

constexpr int64_t kNoRank = std::numeric_limits<int64_t>::max();

// 63 bits of a digest, so that a minimum of their negatives is their maximum.
int64_t BitsOf(const Digest& digest) {
  uint64_t bits = 0;
  static_assert(sizeof(digest.bytes) >= sizeof(bits));
  std::memcpy(&bits, digest.bytes.data(), sizeof(bits));
  return static_cast<int64_t>(bits >> 1);
}

std::vector<LayerId> LayersThatDiffer(const Placement& from, const Placement& to) {
  std::vector<LayerId> layers;
  for (int32_t layer = 0; layer < from.topology().num_layers(); ++layer) {
    if (from.Layer(LayerId{layer}) == to.Layer(LayerId{layer})) continue;
    layers.push_back(LayerId{layer});
  }
  return layers;
}

std::string Named(std::span<const LayerId> layers) {
  std::vector<int32_t> numbers;
  for (const LayerId layer : layers) numbers.push_back(layer.value);
  return absl::StrCat("carry: the rows of ", layers.size() == 1 ? "layer " : "layers ",
                      absl::StrJoin(numbers, ", "));
}

}  // namespace

absl::Status Client::Impl::CheckNotCarried(const char* name) const {
  if (!shown_.is_carried()) return absl::OkStatus();
  return FailedPrecondition(name, ": the rows of the experts were carried to placement ",
                            shown_.row_view().digest, ", the current version is ",
                            running().version, "; carry them back first");
}

absl::StatusOr<Placement> Client::Impl::TargetOf(
    std::span<const int32_t> physical_to_logical_map) const {
  const IndexMatrix& here = running().placement->physical_to_logical_map();
  if (physical_to_logical_map.empty()) return *running().placement;
  if (std::ssize(physical_to_logical_map) != here.size()) {
    return InvalidInput("carry: the placement has ", physical_to_logical_map.size(),
                        " entries, expected ", here.rows(), " layers * ", here.cols(),
                        " slots = ", here.size());
  }
  // With its own order of replicas.
  if (std::equal(physical_to_logical_map.begin(), physical_to_logical_map.end(), here.data())) {
    return *running().placement;
  }
  const Eigen::Map<const IndexMatrix> map(physical_to_logical_map.data(), here.rows(), here.cols());
  absl::StatusOr<Placement> target = Placement::FromSlots(setup_.topology, map);
  if (target.ok()) return target;
  return absl::Status(target.status().code(), absl::StrCat("carry: ", target.status().message()));
}

absl::Status Client::Impl::NameDifference(const char* what, int64_t mine, int64_t lowest) {
  const int64_t self = setup_.options.rank;
  const int64_t ranks[] = {mine == lowest ? self : kNoRank, mine == lowest ? kNoRank : self};
  const absl::StatusOr<std::vector<int64_t>> first =
      control_->AllReduceMin(ranks, setup_.options.vote_deadline);
  if (!first.ok()) return End(first.status());
  return FailedPrecondition("carry: ", what, " differs: rank ", first->front(),
                            " has another one than rank ", first->back(), "; nothing was moved");
}

absl::Status Client::Impl::AgreeOnCarry(const Digest& target, const absl::Status& mine) {
  const int64_t bits = BitsOf(target);
  const int64_t values[] = {mine.ok() ? kNoRank : setup_.options.rank, bits, -bits, next_step_,
                            -next_step_};
  const absl::StatusOr<std::vector<int64_t>> least =
      control_->AllReduceMin(values, setup_.options.vote_deadline);
  if (!least.ok()) return End(least.status());
  const std::vector<int64_t>& found = *least;
  EPLB_RETURN_IF_ERROR(mine);
  if (found[0] != kNoRank) {
    return FailedPrecondition(
        "carry: rank ", found[0],
        " cannot carry its rows, and its error has the reason; nothing was moved");
  }
  if (found[3] != -found[4]) return NameDifference("the next step", next_step_, found[3]);
  if (found[1] != -found[2]) return NameDifference("the placement", bits, found[1]);
  return absl::OkStatus();
}

absl::Status Client::Impl::StageOnAllRanks(const MigrationPlan& plan, const std::string& what) {
  const absl::StatusOr<Executor::Staged> staged =
      rows_.executor->Stage(plan, {.post_id = rows_.NextPost(),
                                   .deadline = MonotonicNow() + setup_.options.transfer_deadline,
                                   .stream = boundary_.stream});
  if (!rows_.executor->may_vote()) {
    return End(WritesGoOn(std::string(staged.status().message())));
  }
  const int64_t mine[] = {staged.ok() ? 1 : 0};
  const absl::StatusOr<std::vector<int64_t>> minimum =
      control_->AllReduceMin(mine, setup_.options.vote_deadline);
  if (!minimum.ok()) {
    rows_.executor->Discard();
    return End(minimum.status());
  }
  if (minimum->front() == 1) return absl::OkStatus();
  rows_.executor->Discard();
  const std::string why =
      staged.ok() ? "the transfer failed on another rank" : std::string(staged.status().message());
  if (!rows_.executor->may_vote()) return End(WritesGoOn(why));
  return Unavailable(what, " could not be moved: ", why);
}

absl::Status Client::Impl::EndAsMoved(const std::string& why) {
  const absl::Status lost = DataLoss(why);
  if (ended_.ok()) return End(lost);
  return ended_ = lost;
}

absl::Status Client::Impl::CarryLayers(std::span<const LayerId> layers, const Placement& target) {
  EPLB_ASSIGN_OR_RETURN(const MigrationPlan plan,
                        PlanMigration(shown_.rows(), target, layers, rows_.migration));
  EPLB_RETURN_IF_ERROR(StageOnAllRanks(plan, Named(layers)));
  if (const absl::Status placed = rows_.executor->Commit(boundary_.stream); !placed.ok()) {
    return End(DataLoss(Named(layers), " could not be put into their slots: ", placed.message()));
  }
  if (rows_.derived.empty()) return absl::OkStatus();
  shown_.ShowMaps(target);
  const absl::Status rebuilt = RebuildDerived(rows_.derived, plan, setup_.topology, setup_.gpu());
  shown_.ShowMaps(*running().placement);
  return rebuilt.ok() ? absl::OkStatus() : End(rebuilt);
}

absl::Status Client::Impl::Carry(std::span<const int32_t> physical_to_logical_map, void* stream) {
  if (setup_.disabled) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(CheckRegistered("Carry"));
  absl::StatusOr<Placement> target = TargetOf(physical_to_logical_map);
  absl::Status mine = target.status();
  mine.Update(CheckStream(stream));
  EPLB_RETURN_IF_ERROR(AgreeOnCarry(target.ok() ? DigestOf(*target) : Digest{}, mine));
  const std::vector<LayerId> layers = LayersThatDiffer(shown_.rows(), *target);
  if (layers.empty() && ahead_.chunk.has_value()) return absl::OkStatus();  // and the chunk goes on
  if (ahead_.chunk.has_value()) {
    // The staging is free once all ranks have stopped, and only now the stream can be checked.
    EPLB_RETURN_IF_ERROR(StopAheadHere("the rows were carried before the next vote"));
    EPLB_RETURN_IF_ERROR(AgreeOnCarry(DigestOf(*target), CheckStream(stream)));
  }
  boundary_.stream = stream;
  const auto chunk = static_cast<size_t>(rows_.staging_layers);
  for (size_t first = 0; first < layers.size(); first += chunk) {
    const std::span<const LayerId> together =
        std::span(layers).subspan(first, std::min(chunk, layers.size() - first));
    absl::Status moved = CarryLayers(together, *target);
    if (moved.ok()) continue;
    if (first == 0) return moved;
    return EndAsMoved(
        absl::StrCat(moved.message(), ", ", first, " layers are in another placement already"));
  }
  rows_.NoteVote();
  shown_.SetRows(*target);
  return absl::OkStatus();
}

}  // namespace eplb
