#include "client/rows/link_setup.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/rows/control/meeting.h"
#include "client/rows/control/socket.h"
#include "client/rows/staging.h"

namespace eplb {

namespace {

// Headers and one detached piece are queued per post; a peer that lets this much pile up reads
// nothing any more.
constexpr size_t kMaxQueuedFrames = 4096;

}  // namespace

void PeerLink::Close(std::string why) {
  if (gone()) return;
  gone_why_ = std::move(why);
  output_.clear();
  target_ = {};
  payload_left_ = 0;
  parts_.fd.Reset();
}

void PeerLink::HangUp() {
  if (!gone()) (void)shutdown(fd(), SHUT_WR);
}

void PeerLink::Queue(const RowMessage& frame, std::span<const std::byte> payload) {
  if (gone()) return;
  if (output_.size() >= kMaxQueuedFrames) return Close("it does not read what it is sent");
  const RowMessage sealed = SealFrame(frame);
  const auto bytes = std::as_bytes(std::span(&sealed, 1));
  Output& header = output_.emplace_back();
  header.owned.assign(bytes.begin(), bytes.end());
  header.bytes = header.owned;
  if (!payload.empty()) output_.emplace_back().bytes = payload;
}

void PeerLink::Flush() {
  while (!output_.empty()) {
    Output& next = output_.front();
    const IoResult sent = SendSome(fd(), next.bytes);
    // The reading side gives the reason, after what the peer still said.
    if (sent.closed) {
      cannot_write_ = true;
      return output_.clear();
    }
    next.bytes = next.bytes.subspan(sent.bytes);
    if (!next.bytes.empty()) return;
    output_.pop_front();
  }
}

void PeerLink::Detach() {
  for (Output& output : output_) {
    if (!output.owned.empty()) continue;
    output.owned.assign(output.bytes.begin(), output.bytes.end());
    output.bytes = output.owned;
  }
}

std::optional<RowMessage> PeerLink::ReadHeader() {
  if (gone()) return std::nullopt;
  const auto bytes = std::as_writable_bytes(std::span(&header_, 1));
  while (header_bytes_ < bytes.size()) {
    const IoResult got = ReceiveSome(fd(), bytes.subspan(header_bytes_));
    header_bytes_ += got.bytes;
    if (got.closed) {
      Close("connection closed");
      return std::nullopt;
    }
    if (got.bytes == 0) return std::nullopt;
  }
  header_bytes_ = 0;
  return header_;
}

void PeerLink::ExpectPayload(size_t bytes, std::span<std::byte> target) {
  payload_left_ = bytes;
  target_ = target;
}

bool PeerLink::ReadPayload() {
  std::array<std::byte, 16384> scrap;
  while (payload_left_ > 0) {
    const bool dropped = target_.empty();
    const std::span<std::byte> into =
        dropped ? std::span(scrap).first(std::min(scrap.size(), payload_left_)) : target_;
    const IoResult got = ReceiveSome(fd(), into);
    payload_left_ -= got.bytes;
    if (!dropped && payload_left_ > 0) target_ = target_.subspan(got.bytes);
    if (got.closed) {
      Close("connection closed");
      return false;
    }
    if (got.bytes == 0) return false;
  }
  return true;
}

namespace {

void TellOne(PeerLink& link, const RowMessage& frame) {
  if (link.gone()) return;
  link.Queue(frame);
  link.Flush();
}

}  // namespace

LinkSet::LinkSet(std::vector<PeerLink> links) : links_(std::move(links)) {
  for (size_t i = 0; i < links_.size(); ++i) index_[links_[i].rank()] = i;
}

PeerLink* LinkSet::Find(RankId peer) {
  const auto found = index_.find(peer);
  return found == index_.end() ? nullptr : &links_[found->second];
}

void LinkSet::Tell(std::span<const RankId> peers, const RowMessage& frame) {
  for (const RankId peer : peers) {
    if (PeerLink* link = Find(peer); link != nullptr) TellOne(*link, frame);
  }
}

void LinkSet::TellAll(const RowMessage& frame) {
  for (PeerLink& link : links_) TellOne(link, frame);
}

std::string LinkSet::DescribeGone(std::span<const RankId> among) {
  std::vector<RankId> gone;
  std::string why;
  for (const RankId peer : among) {
    const PeerLink& link = Of(peer);
    if (!link.gone()) continue;
    gone.push_back(peer);
    if (why.empty()) why = link.gone_why();
  }
  if (gone.empty()) return "";
  return absl::StrCat(NameRanks(gone), gone.size() == 1 ? " is gone (" : " are gone (", why, ")");
}

absl::Status LinkSet::Wait(absl::Time until) const {
  std::vector<pollfd> polled;
  for (const PeerLink& link : links_) {
    if (link.gone()) continue;
    const int events = link.has_output() ? POLLIN | POLLOUT : POLLIN;
    polled.push_back({.fd = link.fd(), .events = static_cast<int16_t>(events), .revents = 0});
  }
  return PollUntil(polled, until).status();
}

void LinkSet::HangUp() {
  for (PeerLink& link : links_) link.HangUp();
}

namespace {

constexpr char kFormat[] = "eplb-rows-2";
// Begins the text of a rank that cannot take part; why follows.
constexpr char kRefusal[] = "!";

absl::Status CheckOptions(const TransportOptions& options) {
  if (options.world_size < 1 || options.rank.value < 0 ||
      options.rank.value >= options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("transport: rank ", options.rank.value,
                                                   " is not in 0..", options.world_size - 1));
  }
  if (options.secret.empty()) {
    return absl::InvalidArgumentError("transport: the secret is empty");
  }
  if (options.max_row_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("transport: max_row_bytes is ", options.max_row_bytes));
  }
  for (const RankId peer : options.peers) {
    if (peer.value < 0 || peer.value >= options.world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("transport: peer ", peer.value, " is not in 0..", options.world_size - 1));
    }
  }
  return absl::OkStatus();
}

// Unique on the host without asking anybody; strangers that guess it fail the handshake.
std::string DrawUnixName() {
  std::random_device random;
  const uint64_t bits = (uint64_t{random()} << 32) | random();
  return absl::StrCat("eplb-rows-", getpid(), "-", absl::Hex(bits, absl::kZeroPad16));
}

struct Listeners {
  Listener tcp;
  std::optional<Listener> local;
};

absl::StatusOr<Listeners> Listen(const TransportOptions& options,
                                 const absl::StatusOr<SharedStaging>& own) {
  EPLB_RETURN_IF_ERROR(CheckOptions(options));
  EPLB_RETURN_IF_ERROR(own.status());
  EPLB_ASSIGN_OR_RETURN(Listener tcp, ListenTcp(options.bind_address, 0));
  Listeners listeners{.tcp = std::move(tcp), .local = std::nullopt};
  if (own->descriptor >= 0 && !BootId().empty()) {
    absl::StatusOr<Listener> local = ListenAbstract(DrawUnixName());
    if (local.ok()) {
      listeners.local = *std::move(local);
    } else if (options.on_note) {
      options.on_note(absl::StrCat("no unix socket: ", local.status().message()));
    }
  }
  return listeners;
}

std::string TextForPeers(const TransportOptions& options,
                         const absl::StatusOr<Listeners>& listeners,
                         const absl::StatusOr<SharedStaging>& own) {
  if (!listeners.ok()) return absl::StrCat(kRefusal, listeners.status().message());
  return LinkAddress{.tcp = listeners->tcp.address,
                     .unix_name = listeners->local.has_value() ? listeners->local->address : "",
                     .boot_id = BootId(),
                     .staging_bytes = options.staging_bytes,
                     .staging_text = own->text}
      .Encode();
}

absl::StatusOr<std::vector<LinkAddress>> ReadAddresses(const TransportOptions& options,
                                                       const std::vector<std::string>& texts) {
  if (texts.size() != static_cast<size_t>(options.world_size)) {
    return absl::FailedPreconditionError(absl::StrCat("transport: the all-gather gave ",
                                                      texts.size(), " answers, expected ",
                                                      options.world_size));
  }
  std::vector<LinkAddress> addresses;
  for (size_t r = 0; r < texts.size(); ++r) {
    if (absl::string_view why = texts[r]; absl::ConsumePrefix(&why, kRefusal)) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", r, ": ", why));
    }
    absl::StatusOr<LinkAddress> address = LinkAddress::Decode(texts[r]);
    if (!address.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("transport: rank ", r, ": ", address.status().message()));
    }
    addresses.push_back(*std::move(address));
  }
  return addresses;
}

bool OnOneHost(const LinkAddress& a, const LinkAddress& b) {
  return a.boot_id == b.boot_id && !a.unix_name.empty() && !b.unix_name.empty();
}

// Who dials whom: the higher rank dials the lower one, by unix socket first where that can work.
absl::StatusOr<Meeting> Meet(const TransportOptions& options, const Listeners& listeners,
                             const std::vector<LinkAddress>& addresses) {
  MeetOptions meet{
      .handshake = {.secret = options.secret, .role = ConnectionRole::kRows, .self = options.rank},
      .dial = {},
      .expect = {},
      .listeners = {&listeners.tcp},
      .deadline = MonotonicNow() + options.connect_timeout};
  if (listeners.local.has_value()) meet.listeners.push_back(&*listeners.local);
  const LinkAddress& own = addresses[options.rank.value];
  for (int32_t r = 0; r < options.world_size; ++r) {
    const RankId peer{r};
    const bool wanted =
        options.peers.empty() ||
        std::find(options.peers.begin(), options.peers.end(), peer) != options.peers.end();
    if (!wanted || peer == options.rank) continue;
    if (peer > options.rank) {
      meet.expect.push_back(peer);
      continue;
    }
    std::vector<std::string> targets;
    if (OnOneHost(own, addresses[r])) targets.push_back(addresses[r].unix_name);
    targets.push_back(addresses[r].tcp);
    meet.dial.push_back({.rank = peer, .addresses = std::move(targets)});
  }
  return MeetPeers("transport", meet);
}

bool IsLocal(const MetPeer& peer) { return !peer.address.empty() && peer.address[0] == '@'; }

std::string WhyNotLocal(const LinkAddress& own, const LinkAddress& other, const MetPeer& peer) {
  if (own.boot_id != other.boot_id) return "another host";
  if (!OnOneHost(own, other)) return "one of the two ranks has no unix socket";
  return peer.first_miss.empty() ? "it did not connect by its unix socket" : peer.first_miss;
}

}  // namespace

std::string LinkAddress::Encode() const {
  return absl::StrCat(kFormat, "\n", tcp, "\n", unix_name, "\n", boot_id, "\n", staging_bytes, "\n",
                      staging_text);
}

absl::StatusOr<LinkAddress> LinkAddress::Decode(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  LinkAddress address;
  if (lines.size() != 6 || lines[0] != kFormat || lines[1].empty() ||
      !absl::SimpleAtoi(lines[4], &address.staging_bytes) || address.staging_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("its address is not of the form ", kFormat, " (another version?)"));
  }
  address.tcp = lines[1];
  address.unix_name = lines[2];
  address.boot_id = lines[3];
  address.staging_text = lines[5];
  return address;
}

absl::StatusOr<LinkParts> SetUpLinks(const TransportOptions& options,
                                     const absl::StatusOr<SharedStaging>& own,
                                     const AllGather& all_gather) {
  const absl::StatusOr<Listeners> listening = Listen(options, own);
  const auto texts = all_gather(TextForPeers(options, listening, own));
  EPLB_RETURN_IF_ERROR(listening.status());
  EPLB_RETURN_IF_ERROR(texts.status());
  EPLB_ASSIGN_OR_RETURN(const std::vector<LinkAddress> addresses, ReadAddresses(options, *texts));
  const absl::Time deadline = MonotonicNow() + options.connect_timeout;
  EPLB_ASSIGN_OR_RETURN(Meeting meeting, Meet(options, *listening, addresses));
  if (options.on_note && meeting.strangers > 0) {
    options.on_note(absl::StrCat(meeting.strangers, " connections of strangers were dropped"));
  }
  // Every rank sends first and reads afterwards, so nobody waits in a circle.
  std::map<RankId, absl::Status> sent;
  for (const auto& [rank, peer] : meeting.peers) {
    if (IsLocal(peer)) sent[rank] = SendDescriptor(peer.fd.get(), own->descriptor);
  }
  LinkParts parts;
  for (auto& [rank, peer] : meeting.peers) {
    const LinkAddress& address = addresses[rank.value];
    absl::StatusOr<Fd> descriptor = absl::UnavailableError("");
    if (!IsLocal(peer)) {
      descriptor =
          absl::UnavailableError(WhyNotLocal(addresses[options.rank.value], address, peer));
    } else if (!sent[rank].ok()) {
      descriptor = sent[rank];
    } else {
      descriptor = ReceiveDescriptor(peer.fd.get(), deadline);
    }
    parts.peers.push_back(
        {.link = PeerLink(
             {.rank = rank, .fd = std::move(peer.fd), .staging_bytes = address.staging_bytes}),
         .staging_text = address.staging_text,
         .descriptor = std::move(descriptor)});
  }
  return parts;
}

void LinkNotes::Add(RankId rank, std::string_view why) { ranks_[std::string(why)].push_back(rank); }

void LinkNotes::Tell(const TransportOptions& options, std::string_view how) const {
  if (!options.on_note) return;
  for (const auto& [why, ranks] : ranks_) {
    options.on_note(absl::StrCat("rows to ", NameRanks(ranks), " ", std::string(how), ": ", why));
  }
}

}  // namespace eplb
