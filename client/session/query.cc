#include "client/session/query.h"

#include <chrono>

#include <grpcpp/client_context.h>

#include "client/session/channel.h"
#include "placement/status_macros.h"
#include "proto/wire/convert.h"
#include "proto/wire/status.h"

#include "eplb/v1/query.grpc.pb.h"

namespace eplb {

absl::StatusOr<wire::PlacementBody> FetchPlacement(const std::string& endpoint,
                                                   const wire::TlsFiles& tls,
                                                   const std::string& job, absl::Duration timeout) {
  EPLB_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, MakeChannel(endpoint, tls));
  const std::unique_ptr<v1::Query::Stub> stub = v1::Query::NewStub(channel);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  v1::GetPlacementRequest request;
  request.set_job(job);
  v1::GetPlacementResponse response;
  EPLB_RETURN_IF_ERROR(wire::FromGrpc(stub->GetPlacement(&context, request, &response)));
  return wire::FromProto(response.placement());
}

}  // namespace eplb
