// gRPC's codes are Abseil's numbers. A message travels in the trailers, whose size is limited: a
// longer one would arrive as another error.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "base/foreign_text.h"

namespace eplb::wire {

inline constexpr size_t kMaxStatusMessage = 1024;  // bytes

inline grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()),
          Clipped({status.message().data(), status.message().size()}, kMaxStatusMessage)};
}

// The daemon that leads, in the trailers of each refusal of one that stands by; kNoLeader when
// there is none.
inline constexpr char kLeaderKey[] = "eplb-leader";
inline constexpr char kNoLeader[] = "none";

// Trailer of a standby's refusal: what is wrong with the standby itself. Absent if nothing is.
inline constexpr char kTroubleKey[] = "eplb-trouble-bin";

inline absl::Status FromGrpc(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

// Converts the status of a call that has ended with this context. The refusal of a standby carries
// the leader and the standby's own trouble.
inline absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context) {
  absl::Status result = FromGrpc(status);
  if (result.ok()) return result;
  const auto& trailers = context.GetServerTrailingMetadata();
  for (const char* key : {kLeaderKey, kTroubleKey}) {
    const auto found = trailers.find(key);
    if (found == trailers.end()) continue;
    result.SetPayload(key, absl::Cord(std::string(found->second.data(), found->second.size())));
  }
  return result;
}

// The leader's address in a refusal of a standby, empty when there is none; nullopt: no standby
// refused.
inline std::optional<std::string> LeaderIn(const absl::Status& status) {
  const absl::optional<absl::Cord> leader = status.GetPayload(kLeaderKey);
  if (!leader) return std::nullopt;
  return *leader == kNoLeader ? std::string() : std::string(*leader);
}

// Returns the trouble of the standby that refused, one sentence; empty if there is none.
inline std::string TroubleIn(const absl::Status& status) {
  const absl::optional<absl::Cord> trouble = status.GetPayload(kTroubleKey);
  return trouble ? Clipped(std::string(*trouble), kMaxStatusMessage) : "";
}

}  // namespace eplb::wire
