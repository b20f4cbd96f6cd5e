#include "client/rows/paths/nccl_meeting.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/rows/paths/nccl_abort.h"

namespace eplb {

static_assert(cuda::kNcclIdBytes == kMeetBytes);

namespace {

// One fewer than the misses after which another path carries the rows.
constexpr int32_t kMaxHangs = 2;

}  // namespace

NcclMeeting::NcclMeeting(NcclMeetingParts parts) : parts_(std::move(parts)) {}

int32_t NcclMeeting::IndexOf(RankId rank) const {
  const auto found = std::lower_bound(parts_.ranks.begin(), parts_.ranks.end(), rank);
  return static_cast<int32_t>(found - parts_.ranks.begin());
}

absl::Status NcclMeeting::Begin(uint64_t post_id, LinkSet& links) {
  if (up_) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(Drop());
  post_id_ = post_id;
  if (parts_.ranks.size() == 1) {
    up_ = true;  // no peer to meet
    return absl::OkStatus();
  }
  if (parts_.self != Root()) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(id_, cuda::MakeNcclId(*parts_.library));
  for (PeerLink& link : links.all()) {
    link.Queue({.type = RowMessageType::kMeet, .post_id = post_id, .bytes = kMeetBytes}, id_);
    link.Flush();
  }
  return Connect(id_);
}

absl::Status NcclMeeting::Connect(const cuda::NcclId& id) {
  cuda::NcclOptions options = parts_.options;
  options.rank = IndexOf(parts_.self);
  options.num_ranks = static_cast<int32_t>(parts_.ranks.size());
  EPLB_ASSIGN_OR_RETURN(communicator_, cuda::NcclCommunicator::Begin(*parts_.library, id, options));
  return absl::OkStatus();
}

absl::StatusOr<bool> NcclMeeting::Advance(LinkSet& links) {
  std::vector<RankId> others = parts_.ranks;
  others.erase(others.begin() + IndexOf(parts_.self));
  if (const std::string gone = links.DescribeGone(others); !gone.empty()) {
    return Unavailable("NCCL communicator of post ", post_id_, ": ", gone);
  }
  for (const RankId other : others) {
    if (links.Of(other).ended >= post_id_) {
      return Aborted("NCCL communicator of post ", post_id_, ": rank ", other.value, " ended it");
    }
  }
  if (communicator_ == nullptr) {
    if (came_for_ != post_id_) return false;
    EPLB_RETURN_IF_ERROR(Connect(coming_));
    return true;
  }
  EPLB_ASSIGN_OR_RETURN(const bool ready, communicator_->Poll());
  if (!ready || !AgreeOnRegistration(links)) return false;
  const auto num_ranks = static_cast<int32_t>(parts_.ranks.size());
  const bool warm = num_ranks <= parts_.warm_up_ranks && next_warm_ < num_ranks;
  if (warm) {
    EPLB_RETURN_IF_ERROR(WarmNextPair());
  } else {
    up_ = true;
  }
  return true;
}

bool NcclMeeting::AgreeOnRegistration(LinkSet& links) {
  if (!has_told_) {
    has_told_ = true;
    is_registered_ = RegistersMemory();
    links.TellAll({.type = RowMessageType::kRegistered,
                   .round = is_registered_ ? 1 : 0,
                   .post_id = post_id_});
  }
  for (const PeerLink& link : links.all()) {
    if (link.has_output()) return false;  // no post may end before our word has left
    const auto told = registered_.find(link.rank());
    if (told == registered_.end() || told->second.first != post_id_) return false;
  }
  if (!is_registered_) return true;
  for (const auto& [rank, told] : registered_) {
    if (told.second) continue;
    NoteUnregistered(absl::StrCat("rank ", rank.value, " has not"));
    communicator_->Deregister();
    is_registered_ = false;
    break;
  }
  return true;
}

bool NcclMeeting::RegistersMemory() {
  if (parts_.memory.empty()) return false;
  absl::Status registered;
  if (num_hangs_ >= kMaxHangs) registered = Unavailable("groups did not end with it");
  for (const std::span<std::byte> range : parts_.memory) {
    if (registered.ok()) registered = communicator_->Register(range);
  }
  if (registered.ok()) return true;
  NoteUnregistered(std::string(registered.message()));
  communicator_->Deregister();
  return false;
}

void NcclMeeting::NoteUnregistered(const std::string& why) {
  if (std::exchange(noted_, true) || !parts_.on_note) return;
  parts_.on_note(absl::StrCat("nccl moves rows without registering its memory: ", why));
}

void NcclMeeting::TakeRegistered(RankId from, const RowMessage& frame) {
  registered_[from] = {frame.post_id, frame.round != 0};
}

absl::Status NcclMeeting::WarmNextPair() {
  const auto num_ranks = static_cast<int32_t>(parts_.ranks.size());
  const int32_t own = IndexOf(parts_.self);
  const int32_t distance = next_warm_++;
  const int32_t to = (own + distance) % num_ranks;
  const int32_t from = (own - distance + num_ranks) % num_ranks;
  std::optional<cuda::NcclSend> send;
  std::optional<cuda::NcclReceive> receive;
  if (HasRows(to)) send = {.to = to, .bytes = parts_.scratch.first(kScratchBytes)};
  if (HasRows(from)) {
    receive = {.from = from, .bytes = parts_.scratch.subspan(kScratchBytes, kScratchBytes)};
  }
  if (!send.has_value() && !receive.has_value()) return absl::OkStatus();
  return communicator_->SendReceive(send, receive, parts_.stream);
}

bool NcclMeeting::HasRows(int32_t index) const {
  const RankId rank = parts_.ranks[static_cast<size_t>(index)];
  return std::ranges::find(parts_.without_rows, rank) == parts_.without_rows.end();
}

std::string NcclMeeting::Waiting() const {
  if (up_) return "";
  if (communicator_ == nullptr) {
    return absl::StrCat("rank ", Root().value, " has sent no id for an NCCL communicator");
  }
  return absl::StrCat("the NCCL communicator of ", parts_.ranks.size(), " ranks is not up");
}

absl::StatusOr<std::span<std::byte>> NcclMeeting::Place(RankId from) {
  if (from != Root()) {
    return DataLoss("it sent the id of an NCCL communicator, which is not its part");
  }
  came_for_.reset();
  return std::span<std::byte>(coming_);
}

void NcclMeeting::Take(const RowMessage& frame) { came_for_ = frame.post_id; }

absl::Status NcclMeeting::Drop() {
  next_warm_ = 1;
  up_ = has_told_ = is_registered_ = false;
  if (communicator_ != nullptr) {
    stuck_.Update(AbortWithin(std::move(communicator_), parts_.device, parts_.abort_timeout));
  }
  return stuck_;
}

absl::Status NcclMeeting::DropAfterHang() {
  if (is_registered_) ++num_hangs_;
  return Drop();
}

void NcclMeeting::NoteEnded() {
  if (is_registered_ && num_hangs_ < kMaxHangs) num_hangs_ = 0;
}

}  // namespace eplb
