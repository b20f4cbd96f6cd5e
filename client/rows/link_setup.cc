// Exchanges addresses, connects the pairs, and hands descriptors of staging over.
#include "client/rows/link_setup.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/rows/control/meeting.h"
#include "client/rows/staging_arena.h"

namespace eplb {
namespace {

constexpr char kFormat[] = "eplb-rows-2";
// First character of the text of a rank that cannot take part; the reason follows.
constexpr char kRefusal[] = "!";

absl::Status CheckOptions(const TransportOptions& options) {
  EPLB_RETURN_IF_ERROR(CheckRank("transport", options.rank, options.world_size));
  if (options.secret.empty()) return InvalidInput("transport: the secret is empty");
  if (options.max_row_bytes < 1) {
    return InvalidInput("transport: max_row_bytes is ", options.max_row_bytes);
  }
  for (const RankId peer : options.peers) {
    if (peer.value < 0 || peer.value >= options.world_size) {
      return InvalidInput("transport: peer ", peer.value, " is not in 0..", options.world_size - 1);
    }
  }
  return absl::OkStatus();
}

// Draws a name that is unique on the host. Strangers that guess it fail the handshake.
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

absl::StatusOr<std::vector<LinkAddress>> ReadAddresses(const std::vector<std::string>& texts) {
  std::vector<LinkAddress> addresses;
  for (size_t r = 0; r < texts.size(); ++r) {
    if (absl::string_view why = texts[r]; absl::ConsumePrefix(&why, kRefusal)) {
      return FailedPrecondition("rank ", r, ": ", why);
    }
    absl::StatusOr<LinkAddress> address = LinkAddress::Decode(texts[r]);
    if (!address.ok()) return InvalidInput("transport: rank ", r, ": ", address.status().message());
    addresses.push_back(*std::move(address));
  }
  return addresses;
}

bool OnOneHost(const LinkAddress& a, const LinkAddress& b) {
  return a.boot_id == b.boot_id && !a.unix_name.empty() && !b.unix_name.empty();
}

// Connects the pairs: the higher rank dials the lower one, first by unix socket if both share a
// host.
absl::StatusOr<Meeting> Meet(const TransportOptions& options, const Listeners& listeners,
                             const std::vector<LinkAddress>& addresses) {
  MeetOptions meet{
      .handshake = {.secret = options.secret, .role = ConnectionRole::kRows, .self = options.rank},
      .listeners = {&listeners.tcp},
      .deadline = MonotonicNow() + options.connect_timeout};
  if (listeners.local.has_value()) meet.listeners.push_back(&*listeners.local);
  const LinkAddress& own = addresses[options.rank.value];
  for (int32_t r = 0; r < options.world_size; ++r) {
    const RankId peer{r};
    const bool wanted =
        options.peers.empty() || std::ranges::find(options.peers, peer) != options.peers.end();
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
    return InvalidInput("its address is not of the form ", kFormat, " (another version?)");
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
  const auto texts =
      GatherAll("transport", TextForPeers(options, listening, own), options.world_size, all_gather);
  EPLB_RETURN_IF_ERROR(listening.status());
  EPLB_RETURN_IF_ERROR(texts.status());
  EPLB_ASSIGN_OR_RETURN(const std::vector<LinkAddress> addresses, ReadAddresses(*texts));
  const absl::Time deadline = MonotonicNow() + options.connect_timeout;
  EPLB_ASSIGN_OR_RETURN(Meeting meeting, Meet(options, *listening, addresses));
  if (options.on_note && meeting.strangers > 0) {
    options.on_note(absl::StrCat(meeting.strangers, " connections of strangers were dropped"));
  }
  // Every rank sends first and reads afterwards, so no ranks wait for each other in a circle.
  std::map<RankId, absl::Status> sent;
  for (const auto& [rank, peer] : meeting.peers) {
    if (IsLocal(peer)) sent[rank] = SendDescriptor(peer.fd.get(), own->descriptor);
  }
  LinkParts parts;
  for (auto& [rank, peer] : meeting.peers) {
    const LinkAddress& address = addresses[rank.value];
    absl::StatusOr<Fd> descriptor = Unavailable("");
    if (!IsLocal(peer)) {
      descriptor = Unavailable(WhyNotLocal(addresses[options.rank.value], address, peer));
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
