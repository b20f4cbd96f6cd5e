// Opens a member to the tests that explore.
#pragma once

#include <string>
#include <utility>

#include "client/session/member.h"
#include "tests/simulation/explorer/bytes.h"

namespace eplb {

struct MemberPeer {
  // Whoever adds a field: say in BytesOf that it tells states apart.
  static constexpr size_t kStateBytes = sizeof(Member) - sizeof(MemberOptions);

  // Equal for equal members of one job. Does not cover the identity, nor the transport, which only
  // changes what is told.
  static std::string BytesOf(const Member& member) {
    explorer::Bytes bytes;
    const auto add_version = [&bytes](const std::shared_ptr<const Proposal>& proposal) {
      bytes.Add(proposal == nullptr ? int64_t{0} : proposal->propose.version);
      if (proposal != nullptr) explorer::AddPropose(proposal->propose, bytes);
    };
    bytes.Add(member.running_.version);
    bytes.Add(member.running_.digest);
    add_version(member.prepared_);
    bytes.Add(int64_t{member.in_vote_});
    add_version(member.frozen_.proposal);
    if (member.in_vote_) {
      for (const int64_t value : member.frozen_.values) bytes.Add(value);
    }
    bytes.Add(member.cancel_ ? member.cancel_->version : 0);
    bytes.Add(member.last_applied_.version);
    bytes.Add(member.last_applied_.step);
    bytes.Add(member.highest_term_);
    bytes.Add(member.highest_version_);
    bytes.Add(member.step_);
    bytes.Add(member.keep_.run_number);
    explorer::AddMemory(member.keep_.memory, bytes);
    bytes.Add(int64_t{member.ended_});
    return std::move(bytes).Take();
  }
  static int64_t HighestTerm(const Member& member) { return member.highest_term_; }
  static int64_t HighestVersion(const Member& member) { return member.highest_version_; }
  static const wire::Keep& Kept(const Member& member) { return member.keep_; }
  static const VoteSnapshot& Frozen(const Member& member) { return member.frozen_; }
};

static_assert(explorer::HasSize(MemberPeer::kStateBytes, 824),
              "Member changed: look at MemberPeer::BytesOf");

}  // namespace eplb
