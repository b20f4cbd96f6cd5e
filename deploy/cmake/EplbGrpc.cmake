# Provider of gRPC and its dependencies: `system` links the distribution's shared libraries; `vendored` links the static
# ones that deploy/vendored builds, so that a program or library needs none of them where it runs.

set(EPLB_GRPC_PROVIDER system CACHE STRING "gRPC, Protobuf, Abseil, RE2: system (shared, of the distribution) or vendored (static, made by deploy/vendored)")
set_property(CACHE EPLB_GRPC_PROVIDER PROPERTY STRINGS system vendored)
set(EPLB_VENDORED_PREFIX "${PROJECT_SOURCE_DIR}/build/vendored/prefix" CACHE PATH "Where deploy/vendored installed")

if(NOT EPLB_GRPC_PROVIDER MATCHES "^(system|vendored)$")
  message(FATAL_ERROR "EPLB_GRPC_PROVIDER is ${EPLB_GRPC_PROVIDER}, expected system or vendored")
endif()
if(EPLB_GRPC_PROVIDER STREQUAL "vendored")
  if(NOT EXISTS "${EPLB_VENDORED_PREFIX}/lib/libgrpc++.a")
    message(FATAL_ERROR "${EPLB_VENDORED_PREFIX} has no lib/libgrpc++.a; make it with\n"
      "  cmake -S deploy/vendored -B build/vendored -G Ninja && cmake --build build/vendored")
  endif()
  list(PREPEND CMAKE_PREFIX_PATH "${EPLB_VENDORED_PREFIX}")
  set(OPENSSL_USE_STATIC_LIBS ON)
  set(Protobuf_USE_STATIC_LIBS ON)
  set(ZLIB_USE_STATIC_LIBS ON)
  find_library(c-ares_LIBRARY libcares.a REQUIRED DOC "The static c-ares, as gRPC's Findc-ares.cmake calls it")
endif()

find_package(Threads REQUIRED)
find_package(OpenSSL 3 REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(Protobuf 3.21 REQUIRED)
find_package(gRPC 1.51 CONFIG REQUIRED)
message(STATUS "gRPC: ${gRPC_VERSION}, ${EPLB_GRPC_PROVIDER}")
