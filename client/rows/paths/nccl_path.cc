#include "client/rows/paths/nccl_path.h"

#include <deque>
#include <utility>

#include "absl/time/clock.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/rows/paths/nccl_groups.h"
#include "client/rows/paths/nccl_meeting.h"
#include "client/rows/paths/nccl_memory.h"
#include "cuda/checksum.h"
#include "cuda/runtime.h"

namespace eplb {
namespace {

// Announcements that a link is given before it has sent them: far below what closes it.
constexpr size_t kFramesAtOnce = 256;
// Time that an abort waits for groups that peers began as well; a piece takes milliseconds.
constexpr absl::Duration kGroupPatience = absl::Milliseconds(500);
// Received pieces whose checksums are summed.
constexpr size_t kMaxPiecesChecking = 16;
// Alignment of addresses that NCCL's kernels move at full speed.
constexpr uintptr_t kWordBytes = 16;

class NcclPath : public RowPath {
 public:
  NcclPath(NcclPathParts parts, NcclMemory memory)
      : device_(parts.device),
        piece_bytes_(parts.settings.piece_bytes),
        pack_queue_(std::move(parts.pack_queue)),
        group_queue_(std::move(parts.group_queue)),
        check_queue_(std::move(parts.check_queue)),
        memory_(std::move(memory)),
        meeting_({.library = parts.library,
                  .options = {.max_ctas = parts.settings.max_ctas,
                              .channels_per_net_peer = parts.settings.channels_per_net_peer,
                              .traffic_class = parts.settings.traffic_class},
                  .self = parts.self,
                  .ranks = std::move(parts.ranks),
                  .scratch = memory_.scratch(),
                  .stream = group_queue_->stream(),
                  .device = parts.device,
                  .abort_timeout = parts.abort_timeout,
                  .warm_up_ranks = parts.settings.warm_up_ranks,
                  .without_rows = std::move(parts.without_rows),
                  .memory = memory_.registrable(),
                  .on_note = std::move(parts.on_note)}) {}

  ~NcclPath() override {
    // NCCL's memory is unmapped at once, whoever still reads it.
    if (meeting_.Drop().ok() && DrainQueues().ok()) return;
    // Kernels that did not end may still use all of this, and to free it would wait for them.
    memory_.Leak();
    (void)pack_queue_.release();
    (void)group_queue_.release();
    (void)check_queue_.release();
  }

  std::string_view name() const override { return "nccl"; }
  std::span<std::byte> staging() override { return memory_.staging(); }

  absl::Status Open(const RowMoves& moves, TransferLedger& ledger, LinkSet& links) override {
    EPLB_ASSIGN_OR_RETURN(const auto guard, OnDevice());
    EPLB_ASSIGN_OR_RETURN(groups_, CutIntoGroups(moves, piece_bytes_));
    // NCCL's kernels, too: beside a collective of the training step they could wait for each other.
    EPLB_RETURN_IF_ERROR(group_queue_->Follow(moves.stream));
    EPLB_RETURN_IF_ERROR(pack_queue_->Follow(moves.stream));
    for (const PeerLink& link : links.all()) {
      // The vote says so as well; here it also meets a caller without one.
      if (link.dropped_shared >= meeting_.post_id()) EPLB_RETURN_IF_ERROR(meeting_.Drop());
    }
    EPLB_RETURN_IF_ERROR(meeting_.Begin(moves.post_id, links));
    ledger_ = &ledger;
    links_ = &links;
    receives_ = moves.receives;
    empty_sends_.clear();
    for (size_t i = 0; i < moves.sends.size(); ++i) {
      if (moves.sends[i].bytes.empty()) empty_sends_.push_back(static_cast<int32_t>(i));
    }
    num_packed_ = num_announced_ = num_begun_ = num_ended_ = 0;
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance() override {
    EPLB_ASSIGN_OR_RETURN(const auto guard, OnDevice());
    if (!meeting_.up()) return meeting_.Advance(*links_);
    EPLB_ASSIGN_OR_RETURN(const bool packed, PackNext());
    EPLB_ASSIGN_OR_RETURN(const bool announced, AnnounceNext());
    EPLB_ASSIGN_OR_RETURN(const bool begun, BeginNext());
    EPLB_ASSIGN_OR_RETURN(const bool ended, EndNext());
    EPLB_ASSIGN_OR_RETURN(const bool checked, FinishChecks());
    return SendEmptyRows() || packed || announced || begun || ended || checked;
  }

  bool busy() const override {
    return !meeting_.up() || num_announced_ < num_packed_ || num_ended_ < num_begun_ ||
           !checking_.empty();
  }

  std::string Waiting() const override { return meeting_.Waiting(); }

  absl::StatusOr<std::span<std::byte>> Place(const PeerLink& link,
                                             const RowMessage& frame) override {
    if (frame.type == RowMessageType::kMeet) return meeting_.Place(link.rank());
    if (frame.type == RowMessageType::kRegistered) {
      meeting_.TakeRegistered(link.rank(), frame);
      return std::span<std::byte>();
    }
    if (frame.type != RowMessageType::kComing) {
      return DataLoss("received a frame that the nccl transport does not use");
    }
    return std::span<std::byte>();
  }

  absl::Status Take(const PeerLink& link, const RowMessage& frame) override {
    if (frame.type == RowMessageType::kMeet) {
      meeting_.Take(frame);
      return absl::OkStatus();
    }
    if (frame.bytes > 0) {
      coming_.Add(link.rank(), frame);
      return absl::OkStatus();
    }
    if (frame.checksum != cuda::ChecksumOnHost({})) {
      return DataLoss("row ", frame.row, ": checksum differs");
    }
    ledger_->AddReceived(*ledger_->Find(link.rank(), frame.row), 0);
    return absl::OkStatus();
  }

  absl::Status Close(bool done) override {
    EPLB_ASSIGN_OR_RETURN(const auto guard, OnDevice());
    if (!done) {
      // With all groups ended, or the communicator, no write of ours lands any more.
      if (!GroupsEnd()) EPLB_RETURN_IF_ERROR(DropCommunicator());
      EPLB_RETURN_IF_ERROR(DrainQueues());
    }
    groups_under_way_.clear();
    checking_.clear();
    coming_.Clear();
    groups_.clear();
    num_packed_ = num_announced_ = num_begun_ = num_ended_ = 0;
    return absl::OkStatus();
  }

  bool is_whole() const override { return meeting_.up(); }
  absl::Status DropShared() override { return meeting_.Drop(); }

 private:
  // From packing to its end.
  struct Group {
    size_t index = 0;             // in groups_
    std::optional<int64_t> pack;  // batches
    std::optional<int64_t> mark;
    std::span<const std::byte> source;  // bytes of the send
    std::vector<uint64_t> checksums;    // checksums of the parts that are sent
    size_t num_announced = 0;           // parts that are sent and were announced
    size_t num_coming = 0;              // parts that are received and were announced
  };
  struct Check {
    size_t group = 0;
    int64_t batch = 0;
  };

  absl::Status DrainQueues() {
    const absl::Time deadline = MonotonicNow() + kSettleTimeout;
    for (cuda::RowQueue* queue : {pack_queue_.get(), group_queue_.get(), check_queue_.get()}) {
      EPLB_RETURN_IF_ERROR(queue->Drain(deadline));
    }
    return absl::OkStatus();
  }

  // NCCL works on the current device.
  absl::StatusOr<std::optional<cuda::DeviceGuard>> OnDevice() const {
    std::optional<cuda::DeviceGuard> guard;
    if (device_.has_value()) {
      EPLB_ASSIGN_OR_RETURN(cuda::DeviceGuard made, cuda::DeviceGuard::Make(*device_));
      guard.emplace(std::move(made));
    }
    return guard;
  }

  std::span<std::byte> StagedBytes(const NcclPiece& piece) {
    return staging().subspan(static_cast<size_t>(piece.staging_offset),
                             static_cast<size_t>(piece.num_bytes));
  }

  bool Ready(RankId peer) const {
    const PeerLink& link = links_->Of(peer);
    return !link.gone() && link.posted == ledger_->post_id();
  }

  const RowSend& SendOf(const RowFragment& part) {
    return ledger_->outgoing()[static_cast<size_t>(part.index)].row;
  }

  // Returns the memory from which NCCL reads a piece. A piece inside one row could stay there,
  // because rows do not change until the commit. NCCL reads registered memory directly, though, and
  // other memory through a buffer.
  std::span<const std::byte> SourceOf(const NcclPiece& piece, size_t index) {
    const RowFragment& first = piece.fragments.front();
    const std::byte* const row = SendOf(first).bytes.data() + first.offset;
    const bool is_aligned = reinterpret_cast<uintptr_t>(row) % kWordBytes == 0;
    const auto num_bytes = static_cast<size_t>(piece.num_bytes);
    if (piece.fragments.size() == 1 && is_aligned && !meeting_.is_registered()) {
      return {row, num_bytes};
    }
    return memory_.packed(index).first(num_bytes);
  }

  absl::StatusOr<bool> PackNext() {
    if (num_packed_ == groups_.size() || num_packed_ - num_ended_ == memory_.num_buffers()) {
      return false;
    }
    const NcclGroup& group = groups_[num_packed_];
    Group under_way;
    under_way.index = num_packed_;
    if (group.send.has_value()) {
      // Only a peer in this post may hear of its rows.
      if (!Ready(group.send->peer)) return false;
      under_way.source = SourceOf(*group.send, num_packed_);
      std::byte* const packed = memory_.packed(num_packed_).data();
      const bool is_packed = under_way.source.data() == packed;
      std::vector<cuda::RowCopy> copies;
      for (const RowFragment& part : group.send->fragments) {
        copies.push_back({.source = SendOf(part).bytes.data() + part.offset,
                          .destination = is_packed ? packed + part.at : nullptr,
                          .num_bytes = part.num_bytes});
      }
      ledger_->NoteBegun(group.round);
      EPLB_ASSIGN_OR_RETURN(under_way.pack, pack_queue_->Copy(copies));
    }
    groups_under_way_.push_back(std::move(under_way));
    ++num_packed_;
    return true;
  }

  Group& UnderWay(size_t index) { return groups_under_way_[index - num_ended_]; }

  absl::StatusOr<bool> AnnounceNext() {
    if (num_announced_ == num_packed_) return false;
    Group& group = UnderWay(num_announced_);
    if (group.pack.has_value()) {
      EPLB_ASSIGN_OR_RETURN(const bool ended, pack_queue_->Ended(*group.pack));
      if (!ended) return false;
      group.checksums = pack_queue_->TakeChecksums(*std::exchange(group.pack, std::nullopt));
    }
    if (groups_[group.index].send.has_value() && !AnnounceParts(group)) return false;
    ++num_announced_;
    return true;
  }

  // Announces as many parts as the peer takes at once; true once all announcements are sent. NCCL
  // may end a send before the peer receives, and no one would then send a frame that still waits
  // here.
  bool AnnounceParts(Group& group) {
    const NcclPiece& piece = *groups_[group.index].send;
    PeerLink& link = links_->Of(piece.peer);
    if (link.has_output()) return false;  // LinkTransport flushes
    for (size_t i = 0; i < kFramesAtOnce && group.num_announced < piece.fragments.size(); ++i) {
      const size_t part = group.num_announced++;
      Announce(piece.fragments[part], group.checksums[part]);
    }
    link.Flush();
    return group.num_announced == piece.fragments.size() && !link.has_output();
  }

  void Announce(const RowFragment& part, uint64_t checksum) {
    const RowSend& row = SendOf(part);
    links_->Of(row.to).Queue(
        ledger_->FrameOf(RowMessageType::kComing, row, part.offset, part.num_bytes, checksum));
  }

  absl::StatusOr<bool> BeginNext() {
    if (groups_.empty()) return false;
    EPLB_ASSIGN_OR_RETURN(const bool free, meeting_.communicator().Poll());
    if (!free) return false;
    if (num_begun_ > num_ended_ && !UnderWay(num_begun_ - 1).mark.has_value()) {
      EPLB_RETURN_IF_ERROR(MarkLast());
      return true;
    }
    if (num_begun_ == num_announced_ || checking_.size() >= kMaxPiecesChecking) return false;
    const NcclGroup& group = groups_[num_begun_];
    std::optional<cuda::NcclSend> send;
    std::optional<cuda::NcclReceive> receive;
    if (group.receive.has_value()) {
      Group& next = UnderWay(num_begun_);
      EPLB_ASSIGN_OR_RETURN(const bool coming,
                            coming_.Covers(*group.receive, receives_, next.num_coming));
      if (!coming) return false;
      receive = {.from = meeting_.IndexOf(group.receive->peer),
                 .bytes = StagedBytes(*group.receive)};
    }
    if (group.send.has_value()) {
      send = {.to = meeting_.IndexOf(group.send->peer), .bytes = UnderWay(num_begun_).source};
    }
    EPLB_RETURN_IF_ERROR(
        meeting_.communicator().SendReceive(send, receive, group_queue_->stream()));
    ++num_begun_;
    return true;
  }

  // The last group is on its stream now. Its end is marked, and what it receives is summed after
  // that on a queue of its own, so that the group after next waits for no sum.
  absl::Status MarkLast() {
    Group& last = UnderWay(num_begun_ - 1);
    EPLB_ASSIGN_OR_RETURN(last.mark, group_queue_->Mark());
    const std::optional<NcclPiece>& receive = groups_[last.index].receive;
    if (!receive.has_value()) return absl::OkStatus();
    EPLB_RETURN_IF_ERROR(check_queue_->Follow(group_queue_->stream()));
    std::vector<cuda::RowCopy> reads;
    for (const RowFragment& part : receive->fragments) {
      reads.push_back(
          {.source = StagedBytes(*receive).data() + part.at, .num_bytes = part.num_bytes});
    }
    EPLB_ASSIGN_OR_RETURN(const int64_t batch, check_queue_->Copy(reads));
    checking_.push_back({.group = last.index, .batch = batch});
    return absl::OkStatus();
  }

  absl::StatusOr<bool> EndNext() {
    if (num_ended_ == num_begun_) return false;
    const Group& under_way = groups_under_way_.front();
    if (!under_way.mark.has_value()) return false;
    EPLB_ASSIGN_OR_RETURN(const bool ended, group_queue_->Ended(*under_way.mark));
    if (!ended) return false;
    const NcclGroup& group = groups_[num_ended_];
    if (group.send.has_value()) CountSent(*group.send);
    meeting_.NoteEnded();
    groups_under_way_.pop_front();
    ++num_ended_;
    return true;
  }

  void CountSent(const NcclPiece& piece) {
    for (const RowFragment& part : piece.fragments) {
      TransferLedger::Outgoing& outgoing = ledger_->outgoing()[static_cast<size_t>(part.index)];
      outgoing.sent += part.num_bytes;
      if (outgoing.sent == static_cast<int64_t>(outgoing.row.bytes.size())) {
        ledger_->FinishSend(outgoing);
      }
    }
  }

  absl::StatusOr<bool> FinishChecks() {
    if (checking_.empty()) return false;
    const Check check = checking_.front();
    EPLB_ASSIGN_OR_RETURN(const bool ended, check_queue_->Ended(check.batch));
    if (!ended) return false;
    const std::vector<uint64_t> checksums = check_queue_->TakeChecksums(check.batch);
    checking_.pop_front();
    const NcclPiece& piece = *groups_[check.group].receive;
    for (size_t i = 0; i < piece.fragments.size(); ++i) {
      const RowFragment& part = piece.fragments[i];
      const RowReceive& row = receives_[static_cast<size_t>(part.index)];
      if (coming_.ChecksumOf(row, part) != checksums[i]) {
        return DataLoss("post ", ledger_->post_id(), ": rank ", row.from.value, ": row ", row.row,
                        ": checksum differs");
      }
      ledger_->AddReceived(*ledger_->Find(row.from, row.row), part.num_bytes);
    }
    return true;
  }

  // Rows without bytes are only announced.
  bool SendEmptyRows() {
    bool moved = false;
    std::erase_if(empty_sends_, [this, &moved](int32_t index) {
      TransferLedger::Outgoing& outgoing = ledger_->outgoing()[static_cast<size_t>(index)];
      PeerLink& link = links_->Of(outgoing.row.to);
      if (link.has_output()) return false;  // LinkTransport flushes
      if (!outgoing.announced) {
        if (!Ready(outgoing.row.to)) return false;
        Announce({.index = index}, cuda::ChecksumOnHost({}));
        link.Flush();
        outgoing.announced = moved = true;
        if (link.has_output()) return false;
      }
      // A send that did not leave is not finished, because the peer is lost.
      if (!link.gone() && link.has_sent_all()) ledger_->FinishSend(outgoing);
      return moved = true;
    });
    return moved;
  }

  // True if the communicator works and all groups that were begun have ended; groups that peers
  // began as well end at once. If it is true on all ranks, the communicator can be used again.
  bool GroupsEnd() {
    if (!meeting_.up()) return false;
    const absl::Time deadline = MonotonicNow() + kGroupPatience;
    while (true) {
      const absl::StatusOr<bool> ended = LastGroupHasEnded();
      if (!ended.ok() || *ended) return ended.ok();
      if (MonotonicNow() >= deadline) return false;
      absl::SleepFor(absl::Microseconds(20));
    }
  }

  // REQUIRES: GroupsEnd said no. A communicator without a group that was begun did not hang.
  absl::Status DropCommunicator() {
    return num_begun_ > num_ended_ ? meeting_.DropAfterHang() : meeting_.Drop();
  }

  absl::StatusOr<bool> LastGroupHasEnded() {
    if (groups_.empty()) return true;
    EPLB_ASSIGN_OR_RETURN(const bool free, meeting_.communicator().Poll());
    if (!free) return false;
    if (num_begun_ == num_ended_) return true;
    std::optional<int64_t>& mark = UnderWay(num_begun_ - 1).mark;
    if (!mark.has_value()) {
      EPLB_ASSIGN_OR_RETURN(mark, group_queue_->Mark());
    }
    return group_queue_->Ended(*mark);
  }

  const std::optional<int32_t> device_;
  const int64_t piece_bytes_;
  std::unique_ptr<cuda::RowQueue> pack_queue_;
  std::unique_ptr<cuda::RowQueue> group_queue_;
  std::unique_ptr<cuda::RowQueue> check_queue_;
  NcclMemory memory_;  // goes before the queues that allocated it
  NcclMeeting meeting_;
  TransferLedger* ledger_ = nullptr;  // ledger of the open post
  LinkSet* links_ = nullptr;
  std::vector<NcclGroup> groups_;
  std::vector<RowReceive> receives_;
  std::vector<int32_t> empty_sends_;  // to be announced
  // Groups pass four gates in their order: packed, announced, begun, ended.
  size_t num_packed_ = 0;
  size_t num_announced_ = 0;
  size_t num_begun_ = 0;
  size_t num_ended_ = 0;
  std::deque<Group> groups_under_way_;  // num_ended_ .. num_packed_ - 1
  AnnouncedParts coming_;
  std::deque<Check> checking_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowPath>> MakeNcclPath(NcclPathParts parts) {
  for (const auto* queue : {&parts.pack_queue, &parts.group_queue, &parts.check_queue}) {
    if (*queue == nullptr) {
      return InvalidInput("the nccl path needs queues to pack, for groups and to check");
    }
  }
  EPLB_ASSIGN_OR_RETURN(NcclMemory memory,
                        NcclMemory::Make({.library = parts.library,
                                          .device = parts.device,
                                          .staging_bytes = parts.staging_bytes,
                                          .piece_bytes = parts.settings.piece_bytes,
                                          .scratch_bytes = 2 * NcclMeeting::kScratchBytes,
                                          .staging = std::move(parts.staging),
                                          .is_staging_registrable = parts.is_staging_registrable,
                                          .on_note = parts.on_note},
                                         *parts.group_queue));
  return std::make_unique<NcclPath>(std::move(parts), std::move(memory));
}

}  // namespace eplb
