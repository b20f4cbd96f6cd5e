// An all-gather over TCP: rank 0 collects a blob of every rank, then answers all.
#include "client/rows/control/tcp_all_gather.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/rows/control/meeting.h"
#include "client/rows/control/socket.h"

namespace eplb {
namespace {

constexpr uint32_t kAllGatherMagic = 0x5845'4c45;  // "ELEX"
constexpr size_t kMaxBlobBytes = size_t{1} << 20;
constexpr absl::Duration kConnectPause = absl::Milliseconds(20);
constexpr size_t kMaxStrangers = 64;
// Extra time of the other ranks, so that the answer of rank 0 names the missing ranks.
constexpr absl::Duration kGrace = absl::Seconds(1);

// Header of a call and of an answer.
struct AllGatherHeader {
  uint32_t magic;
  int32_t rank;
  int32_t world_size;
  uint32_t failed;  // answer: the bytes are an error message
  uint64_t call;    // from 1
  uint64_t bytes;   // bytes that follow
};
static_assert(sizeof(AllGatherHeader) == 32 && std::is_trivially_copyable_v<AllGatherHeader>);

std::span<const std::byte> BytesOf(const AllGatherHeader& header) {
  return std::as_bytes(std::span(&header, 1));
}

// An answer holds each blob behind its length.
std::string Pack(const std::vector<std::string>& blobs) {
  std::string packed;
  for (const std::string& blob : blobs) {
    const uint64_t bytes = blob.size();
    packed.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    packed.append(blob);
  }
  return packed;
}

absl::StatusOr<std::vector<std::string>> Unpack(const std::string& packed, int32_t world_size) {
  std::vector<std::string> blobs;
  blobs.reserve(static_cast<size_t>(world_size));
  size_t at = 0;
  for (int32_t r = 0; r < world_size; ++r) {
    uint64_t bytes = 0;
    if (packed.size() - at < sizeof(bytes)) return DataLoss("all_gather: answer cut short");
    std::memcpy(&bytes, packed.data() + at, sizeof(bytes));
    at += sizeof(bytes);
    if (packed.size() - at < bytes) return DataLoss("all_gather: answer cut short");
    blobs.push_back(packed.substr(at, bytes));
    at += bytes;
  }
  return blobs;
}

// Rank 0: collects one blob of every rank, then answers all.
class Root {
 public:
  Root(TcpAllGatherOptions options, Listener listener)
      : options_(std::move(options)), listener_(std::move(listener)) {}

  absl::StatusOr<std::vector<std::string>> AllGather(std::string_view own) {
    const absl::Time deadline = MonotonicNow() + options_.timeout;
    ++call_;
    refused_ = 0;
    std::vector<Caller> callers(options_.world_size);  // by rank
    callers[0].blob = std::string(own);
    callers[0].complete = true;
    std::vector<Caller> unknown;  // connections whose header has not come yet
    absl::Status status = Collect(callers, unknown, deadline);
    std::vector<std::string> blobs;
    blobs.reserve(callers.size());
    for (const Caller& caller : callers) blobs.push_back(caller.blob);
    const std::string body = status.ok() ? Pack(blobs) : std::string(status.message());
    for (Caller& caller : callers) {
      if (caller.fd.valid()) Answer(caller, body, status);
    }
    if (!status.ok()) return status;
    return blobs;
  }

 private:
  struct Caller {
    Fd fd;
    AllGatherHeader header{};
    size_t header_bytes = 0;
    std::string blob;
    size_t blob_bytes = 0;
    bool complete = false;
  };

  absl::Status Collect(std::vector<Caller>& callers, std::vector<Caller>& unknown,
                       absl::Time deadline) {
    while (!std::ranges::all_of(callers, [](const Caller& c) { return c.complete; })) {
      std::vector<pollfd> polled = {{.fd = listener_.fd.get(), .events = POLLIN, .revents = 0}};
      for (const Caller& caller : unknown) {
        polled.push_back({.fd = caller.fd.get(), .events = POLLIN, .revents = 0});
      }
      EPLB_ASSIGN_OR_RETURN(const int ready, PollUntil(polled, deadline));
      if (ready == 0) return Missing(callers);
      for (size_t i = 0; i < unknown.size(); ++i) {
        if (polled[i + 1].revents != 0) Read(unknown[i], callers);
      }
      std::erase_if(unknown, [](const Caller& c) { return !c.fd.valid(); });
      if (polled[0].revents == 0) continue;
      EPLB_ASSIGN_OR_RETURN(Fd fd, Accept(listener_.fd.get()));
      if (!fd.valid()) continue;
      if (unknown.size() >= callers.size() + kMaxStrangers) {
        unknown.erase(unknown.begin());
        ++refused_;
      }
      unknown.emplace_back().fd = std::move(fd);
    }
    return absl::OkStatus();
  }

  absl::Status Missing(const std::vector<Caller>& callers) const {
    std::vector<RankId> ranks;
    for (size_t r = 0; r < callers.size(); ++r) {
      if (!callers[r].complete) ranks.push_back(RankId{static_cast<int32_t>(r)});
    }
    return DeadlineExceeded(
        "all_gather ", call_, ": ", NameRanks(std::move(ranks)), " did not connect to ",
        listener_.address, " within ", absl::FormatDuration(options_.timeout),
        refused_ > 0 ? absl::StrCat(" (", refused_, " connections did not belong here)") : "");
  }

  // Reads what has come; a complete caller moves to its rank, a wrong one is dropped.
  void Read(Caller& caller, std::vector<Caller>& callers) {
    const auto header = std::as_writable_bytes(std::span(&caller.header, 1));
    if (caller.header_bytes < header.size()) {
      const IoResult got = ReceiveSome(caller.fd.get(), header.subspan(caller.header_bytes));
      caller.header_bytes += got.bytes;
      if (got.closed) return Refuse(caller);
      if (caller.header_bytes < header.size()) return;
      if (!Belongs(caller.header)) return Refuse(caller);
      caller.blob.resize(caller.header.bytes);
    }
    const auto blob = std::as_writable_bytes(std::span(caller.blob));
    while (caller.blob_bytes < blob.size()) {
      const IoResult got = ReceiveSome(caller.fd.get(), blob.subspan(caller.blob_bytes));
      caller.blob_bytes += got.bytes;
      if (got.closed) return Refuse(caller);
      if (got.bytes == 0) return;
    }
    caller.complete = true;
    // A rank that lost its connection calls again; the newest counts.
    Caller& place = callers[caller.header.rank];
    std::swap(place, caller);
    caller.fd.Reset();
  }

  bool Belongs(const AllGatherHeader& header) const {
    return header.magic == kAllGatherMagic && header.world_size == options_.world_size &&
           header.rank > 0 && header.rank < options_.world_size && header.call == call_ &&
           header.bytes <= kMaxBlobBytes;
  }

  void Refuse(Caller& caller) {
    caller.fd.Reset();
    ++refused_;
  }

  // A caller that cannot be answered finds out by itself, and the others are still answered.
  void Answer(Caller& caller, const std::string& body, const absl::Status& status) const {
    const AllGatherHeader header{.magic = kAllGatherMagic,
                                 .rank = 0,
                                 .world_size = options_.world_size,
                                 .failed = status.ok() ? 0U : 1U,
                                 .call = call_,
                                 .bytes = body.size()};
    const absl::Time until = MonotonicNow() + kGrace + options_.timeout;
    if (SendAll(caller.fd.get(), BytesOf(header), until).ok()) {
      (void)SendAll(caller.fd.get(), std::as_bytes(std::span(body)), until);
    }
  }

  const TcpAllGatherOptions options_;
  const Listener listener_;
  uint64_t call_ = 0;
  int64_t refused_ = 0;
};

// The other ranks: each connects, sends its blob and receives the answer.
class Member {
 public:
  explicit Member(TcpAllGatherOptions options)
      : options_(std::move(options)), address_(JoinAddress(options_.address, options_.port)) {}

  absl::StatusOr<std::vector<std::string>> AllGather(std::string_view own) {
    const absl::Time deadline = MonotonicNow() + options_.timeout + kGrace;
    ++call_;
    absl::Status last = Unavailable("no attempt was made");
    while (MonotonicNow() < deadline) {
      absl::StatusOr<std::string> body = Call(own, deadline);
      if (body.ok()) return Unpack(*body, options_.world_size);
      if (!absl::IsUnavailable(body.status())) return body.status();
      last = body.status();
      // Rank 0 is not there yet: nothing to poll, so the pause is a poll of nothing.
      EPLB_RETURN_IF_ERROR(
          PollUntil({}, std::min(deadline, MonotonicNow() + kConnectPause)).status());
    }
    return DeadlineExceeded("all_gather ", call_, ": rank 0 did not listen at ", address_,
                            " within ", absl::FormatDuration(options_.timeout), " (",
                            last.message(), ")");
  }

 private:
  // errors: Unavailable: worth another try.
  absl::StatusOr<std::string> Call(std::string_view own, absl::Time deadline) const {
    EPLB_ASSIGN_OR_RETURN(const Fd fd, StartConnect(address_));
    pollfd entry{.fd = fd.get(), .events = POLLOUT, .revents = 0};
    EPLB_ASSIGN_OR_RETURN(const int ready, PollUntil(std::span(&entry, 1), deadline));
    if (ready == 0) return Unavailable("rank 0 does not accept the connection");
    EPLB_RETURN_IF_ERROR(FinishConnect(fd.get()));
    AllGatherHeader header{.magic = kAllGatherMagic,
                           .rank = options_.rank.value,
                           .world_size = options_.world_size,
                           .failed = 0,
                           .call = call_,
                           .bytes = own.size()};
    EPLB_RETURN_IF_ERROR(Waiting(SendAll(fd.get(), BytesOf(header), deadline)));
    EPLB_RETURN_IF_ERROR(Waiting(SendAll(fd.get(), std::as_bytes(std::span(own)), deadline)));
    EPLB_RETURN_IF_ERROR(
        Waiting(ReceiveAll(fd.get(), std::as_writable_bytes(std::span(&header, 1)), deadline)));
    const uint64_t most = (kMaxBlobBytes + sizeof(uint64_t)) * options_.world_size;
    if (header.magic != kAllGatherMagic || header.call != call_ || header.bytes > most) {
      return DataLoss("all_gather: ", address_, " is not rank 0 of this job");
    }
    std::string body(header.bytes, '\0');
    EPLB_RETURN_IF_ERROR(
        Waiting(ReceiveAll(fd.get(), std::as_writable_bytes(std::span(body)), deadline)));
    if (header.failed != 0) return DeadlineExceeded(body);
    return body;
  }

  // The caller's loop reports the deadline, because it has the name of the missing peer.
  static absl::Status Waiting(absl::Status status) {
    if (absl::IsDeadlineExceeded(status)) return Unavailable("rank 0 does not answer");
    return status;
  }

  const TcpAllGatherOptions options_;
  const std::string address_;
  uint64_t call_ = 0;
};

// Makes a function of either end, which is shared because a function object must be copyable.
template <class End>
AllGather Wrap(std::shared_ptr<End> end) {
  return
      [end = std::move(end)](std::string_view bytes) -> absl::StatusOr<std::vector<std::string>> {
        if (bytes.size() > kMaxBlobBytes) {
          return InvalidInput("all_gather: a blob of ", bytes.size(), " bytes is above ",
                              kMaxBlobBytes);
        }
        return end->AllGather(bytes);
      };
}

}  // namespace

absl::StatusOr<AllGather> MakeTcpAllGather(const TcpAllGatherOptions& options) {
  EPLB_RETURN_IF_ERROR(CheckRank("all_gather", options.rank, options.world_size));
  if (options.rank.value != 0) return Wrap(std::make_shared<Member>(options));
  EPLB_ASSIGN_OR_RETURN(Listener listener, ListenTcp(options.address, options.port));
  return Wrap(std::make_shared<Root>(options, std::move(listener)));
}

}  // namespace eplb
