#include "client/session/query.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/session/channel.h"
#include "placement/status_macros.h"
#include "proto/wire/convert.h"
#include "proto/wire/status.h"

#include "eplb/v1/query.grpc.pb.h"

namespace eplb {
namespace {

constexpr uint64_t kMaxVersion = uint64_t{1} << 62;  // room to add

}  // namespace

absl::StatusOr<StoredPlacement> FetchPlacement(const std::string& endpoint,
                                               const wire::TlsFiles& tls, const std::string& job,
                                               absl::Duration timeout) {
  EPLB_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, MakeChannel(endpoint, tls));
  const std::unique_ptr<v1::Query::Stub> stub = v1::Query::NewStub(channel);
  v1::GetPlacementRequest request;
  request.set_job(job);
  v1::GetPlacementResponse response;
  EPLB_RETURN_IF_ERROR(CallDaemon(timeout, timeout, [&](grpc::ClientContext* context) {
    return stub->GetPlacement(context, request, &response);
  }));
  EPLB_ASSIGN_OR_RETURN(wire::PlacementBody body, wire::FromProto(response.placement()));
  if (response.next_version() > kMaxVersion) {
    return absl::InvalidArgumentError(absl::StrCat("next_version is ", response.next_version(),
                                                   ", expected at most ", kMaxVersion));
  }
  const int64_t next_version =
      std::max(static_cast<int64_t>(response.next_version()), body.version + 1);
  return StoredPlacement{.body = std::move(body), .next_version = next_version};
}

}  // namespace eplb
