#include "client/rows/transfer_ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/rows/control/meeting.h"
#include "cuda/checksum.h"

namespace eplb {
namespace {

// Part of a row that sends and receives share.
struct RowPlace {
  const char* direction;  // "to" or "from"
  RankId peer;
  int32_t row = 0;
  int32_t round = 0;
  int64_t staging_offset = 0;
  int64_t num_bytes = 0;
  int64_t arena_bytes = 0;
};

std::string Describe(const RowPlace& place) {
  return absl::StrCat("row ", place.row, " ", place.direction, " rank ", place.peer.value);
}

absl::Status CheckPlace(const RowPlace& place, const MoveLimits& limits) {
  if (place.arena_bytes < 0 || place.peer == limits.self) {
    return InvalidInput(Describe(place), ": not a peer of rank ", limits.self.value);
  }
  if (place.row < 0 || place.round < 0) {
    return InvalidInput(Describe(place), ": row and round ", place.round, " must not be negative");
  }
  if (place.num_bytes < 0 || place.num_bytes > limits.max_row_bytes) {
    return InvalidInput(Describe(place), ": ", place.num_bytes, " bytes, the largest row is ",
                        limits.max_row_bytes);
  }
  if (place.staging_offset < 0 || place.num_bytes > place.arena_bytes ||
      place.staging_offset > place.arena_bytes - place.num_bytes) {
    return InvalidInput(Describe(place), ": bytes ", place.staging_offset, "+", place.num_bytes,
                        " are outside the arena of ", place.arena_bytes);
  }
  return absl::OkStatus();
}

RowPlace PlaceOf(const RowSend& send, const MoveLimits& limits) {
  return {.direction = "to",
          .peer = send.to,
          .row = send.row,
          .round = send.round,
          .staging_offset = send.staging_offset,
          .num_bytes = static_cast<int64_t>(send.bytes.size()),
          .arena_bytes = limits.peer_staging_bytes(send.to)};
}

RowPlace PlaceOf(const RowReceive& receive, const MoveLimits& limits) {
  const bool is_peer = limits.peer_staging_bytes(receive.from) >= 0;
  return {.direction = "from",
          .peer = receive.from,
          .row = receive.row,
          .round = receive.round,
          .staging_offset = receive.staging_offset,
          .num_bytes = receive.num_bytes,
          .arena_bytes = is_peer ? limits.staging_bytes : -1};
}

template <class Rows>
absl::Status CheckRows(const Rows& rows, const MoveLimits& limits) {
  std::set<std::pair<int32_t, int32_t>> seen;
  int32_t round = 0;
  for (const auto& row : rows) {
    const RowPlace place = PlaceOf(row, limits);
    EPLB_RETURN_IF_ERROR(CheckPlace(place, limits));
    if (!seen.insert({place.peer.value, place.row}).second) {
      return InvalidInput(Describe(place), ": given twice");
    }
    if (place.round < round) {
      return InvalidInput(Describe(place), ": round ", place.round, " follows round ", round);
    }
    round = place.round;
  }
  return absl::OkStatus();
}

absl::Status CheckOverlap(const std::vector<RowReceive>& receives) {
  std::vector<const RowReceive*> by_offset;
  for (const RowReceive& receive : receives) {
    if (receive.num_bytes > 0) by_offset.push_back(&receive);
  }
  std::ranges::sort(by_offset, [](const RowReceive* a, const RowReceive* b) {
    return a->staging_offset < b->staging_offset;
  });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const RowReceive& before = *by_offset[i - 1];
    if (before.staging_offset + before.num_bytes > by_offset[i]->staging_offset) {
      return InvalidInput("row ", before.row, " from rank ", before.from.value, " and row ",
                          by_offset[i]->row, " from rank ", by_offset[i]->from.value,
                          " overlap in staging");
    }
  }
  return absl::OkStatus();
}

std::vector<RankId> Rising(const std::set<RankId>& ranks) { return {ranks.begin(), ranks.end()}; }

std::string CountRows(int64_t rows) { return absl::StrCat(rows, rows == 1 ? " row" : " rows"); }

}  // namespace

absl::Status CheckMoves(const RowMoves& moves, const MoveLimits& limits) {
  if (limits.posted_before && moves.post_id <= limits.last_post_id) {
    return InvalidInput("post ", moves.post_id, " does not rise above post ", limits.last_post_id);
  }
  EPLB_RETURN_IF_ERROR(CheckRows(moves.sends, limits));
  EPLB_RETURN_IF_ERROR(CheckRows(moves.receives, limits));
  return CheckOverlap(moves.receives);
}

TransferLedger::TransferLedger(const RowMoves& moves)
    : post_id_(moves.post_id), deadline_(moves.deadline), keeps_sums_(moves.keep_sums) {
  for (const RowSend& send : moves.sends) outgoing_.push_back({.row = send});
  for (const RowReceive& receive : moves.receives) {
    index_[{receive.from.value, receive.row}] = incoming_.size();
    incoming_.push_back({.row = receive});
  }
  incoming_left_ = incoming_.size();
  outgoing_left_ = outgoing_.size();
  progress_.done = complete();
  if (!moves.time_rounds) return;
  std::set<int32_t> rounds;
  for (const RowSend& send : moves.sends) rounds.insert(send.round);
  for (const RowReceive& receive : moves.receives) rounds.insert(receive.round);
  for (const int32_t round : rounds) progress_.rounds.push_back({.round = round});
}

TransferLedger::TransferLedger(const RowMoves& part, TransferLedger& whole) : TransferLedger(part) {
  whole_ = &whole;
  progress_.rounds.clear();
  size_t at = 0;
  for (const RowSend& send : part.sends) {
    while (whole.outgoing_[at].row.to != send.to || whole.outgoing_[at].row.row != send.row) ++at;
    sends_of_whole_.push_back(at++);
  }
}

RoundTimes* TransferLedger::TimesOf(int32_t round) {
  const auto found = std::lower_bound(
      progress_.rounds.begin(), progress_.rounds.end(), round,
      [](const RoundTimes& times, int32_t wanted) { return times.round < wanted; });
  return found == progress_.rounds.end() || found->round != round ? nullptr : &*found;
}

void TransferLedger::NoteBegun(int32_t round) {
  if (whole_ != nullptr) return whole_->NoteBegun(round);
  RoundTimes* const times = TimesOf(round);
  if (times != nullptr && times->began == absl::InfiniteFuture()) times->began = MonotonicNow();
}

RoundTimes* TransferLedger::NoteEnded(int32_t round) {
  RoundTimes* const times = TimesOf(round);
  if (times == nullptr) return nullptr;
  times->ended = MonotonicNow();
  times->began = std::min(times->began, times->ended);
  return times;
}

uint64_t TransferLedger::ChecksumOnHost(int32_t round, std::span<const std::byte> bytes) {
  if (whole_ != nullptr) return whole_->ChecksumOnHost(round, bytes);
  RoundTimes* const times = TimesOf(round);
  if (times == nullptr) return cuda::ChecksumOnHost(bytes);
  const absl::Time began = MonotonicNow();
  times->began = std::min(times->began, began);
  const uint64_t checksum = cuda::ChecksumOnHost(bytes);
  times->checksum += MonotonicNow() - began;
  return checksum;
}

TransferLedger::Incoming* TransferLedger::Find(RankId from, int32_t row) {
  const auto found = index_.find({from.value, row});
  return found == index_.end() ? nullptr : &incoming_[found->second];
}

void TransferLedger::AddReceived(Incoming& incoming, int64_t bytes) {
  if (whole_ != nullptr) {
    whole_->AddReceived(*whole_->Find(incoming.row.from, incoming.row.row), bytes);
  }
  incoming.received += bytes;
  progress_.received_bytes += bytes;
  if (RoundTimes* const times = NoteEnded(incoming.row.round)) times->received_bytes += bytes;
  if (incoming.done || incoming.received < incoming.row.num_bytes) return;
  incoming.done = true;
  --incoming_left_;
  progress_.done = complete();
}

std::span<TransferLedger::Outgoing> TransferLedger::CurrentRound(
    const std::function<bool(RankId)>& ready) {
  while (first_open_ < outgoing_.size() && outgoing_[first_open_].done) ++first_open_;
  const auto begin = std::find_if(
      outgoing_.begin() + static_cast<ptrdiff_t>(first_open_), outgoing_.end(),
      [&](const Outgoing& outgoing) { return !outgoing.done && ready(outgoing.row.to); });
  const auto end = std::find_if(begin, outgoing_.end(), [&](const Outgoing& outgoing) {
    return outgoing.row.round != begin->row.round;
  });
  if (begin != end) NoteBegun(begin->row.round);
  return {begin, end};
}

void TransferLedger::FinishSend(Outgoing& outgoing) {
  if (outgoing.done) return;
  if (whole_ != nullptr) {
    const auto index = static_cast<size_t>(&outgoing - outgoing_.data());
    whole_->FinishSend(whole_->outgoing_[sends_of_whole_[index]]);
  }
  outgoing.done = true;
  --outgoing_left_;
  const auto bytes = static_cast<int64_t>(outgoing.row.bytes.size());
  progress_.sent_bytes += bytes;
  if (RoundTimes* const times = NoteEnded(outgoing.row.round)) times->sent_bytes += bytes;
  progress_.done = complete();
}

void TransferLedger::NoteSent(const Outgoing& outgoing, int64_t offset, int64_t num_bytes,
                              uint64_t checksum) {
  if (whole_ != nullptr) {
    const auto index = static_cast<size_t>(&outgoing - outgoing_.data());
    return whole_->NoteSent(whole_->outgoing_[sends_of_whole_[index]], offset, num_bytes, checksum);
  }
  if (!keeps_sums_) return;
  progress_.sent.push_back({.send = static_cast<size_t>(&outgoing - outgoing_.data()),
                            .offset = offset,
                            .num_bytes = num_bytes,
                            .checksum = checksum});
}

RowMessage TransferLedger::FrameOf(RowMessageType type, const RowSend& row, int64_t offset,
                                   int64_t bytes, uint64_t checksum) const {
  return {.type = type,
          .row = row.row,
          .round = row.round,
          .post_id = post_id_,
          .row_bytes = static_cast<int64_t>(row.bytes.size()),
          .staging_offset = row.staging_offset,
          .offset = offset,
          .bytes = bytes,
          .checksum = checksum};
}

std::set<RankId> TransferLedger::RanksOf(bool (*owes)(const Incoming&),
                                         bool (*takes)(const Outgoing&)) const {
  std::set<RankId> ranks;
  for (const Incoming& incoming : incoming_) {
    if (owes(incoming)) ranks.insert(incoming.row.from);
  }
  for (const Outgoing& outgoing : outgoing_) {
    if (takes(outgoing)) ranks.insert(outgoing.row.to);
  }
  return ranks;
}

std::vector<RankId> TransferLedger::PeersLeft() const {
  return Rising(RanksOf([](const Incoming& row) { return !row.done; },
                        [](const Outgoing& row) { return !row.done; }));
}

std::vector<RankId> TransferLedger::PeersNeeded() const {
  return Rising(RanksOf([](const Incoming& row) { return !row.done && !row.arrived; },
                        [](const Outgoing& row) { return !row.done; }));
}

std::vector<RankId> TransferLedger::Peers() const {
  return Rising(
      RanksOf([](const Incoming&) { return true; }, [](const Outgoing&) { return true; }));
}

absl::Status TransferLedger::DeadlineError() const {
  const std::set<RankId> owing =
      RanksOf([](const Incoming& row) { return !row.done; }, [](const Outgoing&) { return false; });
  const std::set<RankId> slow =
      RanksOf([](const Incoming&) { return false; }, [](const Outgoing& row) { return !row.done; });
  std::string text = absl::StrCat("post ", post_id_, ": deadline passed");
  if (!owing.empty()) {
    absl::StrAppend(&text, "; ", NameRanks(Rising(owing)), owing.size() == 1 ? " owes " : " owe ",
                    CountRows(static_cast<int64_t>(incoming_left_)));
  }
  if (!slow.empty()) {
    absl::StrAppend(&text, "; ", NameRanks(Rising(slow)),
                    slow.size() == 1 ? " has not taken " : " have not taken ",
                    CountRows(static_cast<int64_t>(outgoing_left_)));
  }
  return DeadlineExceeded(text);
}

}  // namespace eplb
