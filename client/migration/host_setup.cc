#include "client/migration/host_setup.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "client/control/meeting.h"
#include "client/control/monotonic_clock.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

constexpr char kFormat[] = "eplb-rows-1";

absl::Status CheckOptions(const HostTransportOptions& options) {
  if (options.world_size < 1 || options.rank.value < 0 ||
      options.rank.value >= options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("host transport: rank ", options.rank.value,
                                                   " is not in 0..", options.world_size - 1));
  }
  if (options.secret.empty()) {
    return absl::InvalidArgumentError("host transport: the secret is empty");
  }
  if (options.max_row_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("host transport: max_row_bytes is ", options.max_row_bytes));
  }
  for (const RankId peer : options.peers) {
    if (peer.value < 0 || peer.value >= options.world_size) {
      return absl::InvalidArgumentError(absl::StrCat("host transport: peer ", peer.value,
                                                     " is not in 0..", options.world_size - 1));
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

absl::StatusOr<Listeners> Listen(const HostTransportOptions& options) {
  EPLB_ASSIGN_OR_RETURN(Listener tcp, ListenTcp(options.bind_address, 0));
  Listeners listeners{.tcp = std::move(tcp), .local = std::nullopt};
  if (options.use_shared_memory && !BootId().empty()) {
    absl::StatusOr<Listener> local = ListenAbstract(DrawUnixName());
    if (local.ok()) {
      listeners.local = *std::move(local);
    } else if (options.on_note) {
      options.on_note(absl::StrCat("no shared memory: ", local.status().message()));
    }
  }
  return listeners;
}

absl::StatusOr<std::vector<HostAddress>> ExchangeAddresses(const HostTransportOptions& options,
                                                           const Listeners& listeners,
                                                           const Exchange& exchange) {
  const HostAddress own{.tcp = listeners.tcp.address,
                        .unix_name = listeners.local.has_value() ? listeners.local->address : "",
                        .boot_id = BootId(),
                        .staging_bytes = options.staging_bytes};
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> texts, exchange(own.Encode()));
  if (texts.size() != static_cast<size_t>(options.world_size)) {
    return absl::FailedPreconditionError(absl::StrCat("host transport: the exchange gave ",
                                                      texts.size(), " answers, expected ",
                                                      options.world_size));
  }
  std::vector<HostAddress> addresses;
  for (size_t r = 0; r < texts.size(); ++r) {
    absl::StatusOr<HostAddress> address = HostAddress::Decode(texts[r]);
    if (!address.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("host transport: rank ", r, ": ", address.status().message()));
    }
    addresses.push_back(*std::move(address));
  }
  return addresses;
}

bool OnOneHost(const HostAddress& a, const HostAddress& b) {
  return a.boot_id == b.boot_id && !a.unix_name.empty() && !b.unix_name.empty();
}

// Who dials whom: the higher rank dials the lower one, by unix socket first where that can work.
absl::StatusOr<Meeting> Meet(const HostTransportOptions& options, const Listeners& listeners,
                             const std::vector<HostAddress>& addresses) {
  MeetOptions meet{
      .handshake = {.secret = options.secret, .role = ConnectionRole::kRows, .self = options.rank},
      .dial = {},
      .expect = {},
      .listeners = {&listeners.tcp},
      .deadline = MonotonicNow() + options.connect_timeout};
  if (listeners.local.has_value()) meet.listeners.push_back(&*listeners.local);
  const HostAddress& own = addresses[options.rank.value];
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
  return MeetPeers("host transport", meet);
}

bool IsLocal(const MetPeer& peer) { return !peer.address.empty() && peer.address[0] == '@'; }

class ArenaSharing {
 public:
  ArenaSharing(const HostTransportOptions& options, const std::vector<HostAddress>& addresses)
      : options_(options), addresses_(addresses) {}

  // Every rank sends first and reads afterwards, so nobody waits in a circle.
  std::vector<PeerLink> Run(Meeting&& meeting, const StagingArena& own, absl::Time deadline) {
    for (const auto& [rank, peer] : meeting.peers) {
      if (!IsLocal(peer)) continue;
      if (const absl::Status sent = SendDescriptor(peer.fd.get(), own.fd()); !sent.ok()) {
        Note(rank, sent.message());
      }
    }
    std::vector<PeerLink> links;
    for (auto& [rank, peer] : meeting.peers) {
      PeerLink::Parts parts{.rank = rank,
                            .fd = {},
                            .arena = {},
                            .staging_bytes = addresses_[rank.value].staging_bytes};
      if (IsLocal(peer)) {
        absl::StatusOr<StagingArena> arena = Receive(peer.fd.get(), parts.staging_bytes, deadline);
        if (arena.ok()) {
          parts.arena = *std::move(arena);
        } else {
          Note(rank, arena.status().message());
        }
      } else if (options_.use_shared_memory) {
        Note(rank, WhyNotLocal(rank, peer));
      }
      parts.fd = std::move(peer.fd);
      links.emplace_back(std::move(parts));
    }
    if (options_.on_note) {
      for (auto& [why, ranks] : notes_) {
        options_.on_note(absl::StrCat("rows to ", NameRanks(ranks), " go over the socket: ", why));
      }
      if (meeting.strangers > 0) {
        options_.on_note(absl::StrCat(meeting.strangers, " connections of strangers were dropped"));
      }
    }
    return links;
  }

 private:
  static absl::StatusOr<StagingArena> Receive(int socket, int64_t bytes, absl::Time deadline) {
    EPLB_ASSIGN_OR_RETURN(Fd fd, ReceiveDescriptor(socket, deadline));
    return StagingArena::Map(std::move(fd), bytes);
  }

  std::string WhyNotLocal(RankId rank, const MetPeer& peer) const {
    const HostAddress& own = addresses_[options_.rank.value];
    const HostAddress& other = addresses_[rank.value];
    if (own.boot_id != other.boot_id) return "another host";
    if (!OnOneHost(own, other)) return "one of us has no unix socket";
    return peer.first_miss.empty() ? "it did not come by its unix socket" : peer.first_miss;
  }

  void Note(RankId rank, absl::string_view why) { notes_[std::string(why)].push_back(rank); }

  const HostTransportOptions& options_;
  const std::vector<HostAddress>& addresses_;
  std::map<std::string, std::vector<RankId>> notes_;
};

}  // namespace

std::string HostAddress::Encode() const {
  return absl::StrCat(kFormat, "\n", tcp, "\n", unix_name, "\n", boot_id, "\n", staging_bytes);
}

absl::StatusOr<HostAddress> HostAddress::Decode(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  HostAddress address;
  if (lines.size() != 5 || lines[0] != kFormat || lines[1].empty() ||
      !absl::SimpleAtoi(lines[4], &address.staging_bytes) || address.staging_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("its address is not of the form ", kFormat, " (another version?)"));
  }
  address.tcp = lines[1];
  address.unix_name = lines[2];
  address.boot_id = lines[3];
  return address;
}

absl::StatusOr<HostParts> SetUpHost(const HostTransportOptions& options, const Exchange& exchange) {
  EPLB_RETURN_IF_ERROR(CheckOptions(options));
  HostParts parts;
  EPLB_ASSIGN_OR_RETURN(parts.arena, StagingArena::Make(options.staging_bytes));
  EPLB_ASSIGN_OR_RETURN(const Listeners listeners, Listen(options));
  EPLB_ASSIGN_OR_RETURN(const std::vector<HostAddress> addresses,
                        ExchangeAddresses(options, listeners, exchange));
  const absl::Time deadline = MonotonicNow() + options.connect_timeout;
  EPLB_ASSIGN_OR_RETURN(Meeting meeting, Meet(options, listeners, addresses));
  parts.links = ArenaSharing(options, addresses).Run(std::move(meeting), parts.arena, deadline);
  return parts;
}

}  // namespace eplb
