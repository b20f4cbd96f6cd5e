# `cpack` in a build folder makes the Debian packages, one for each component of EplbInstall.cmake. The tarball and the wheel are made
# of the same installation by deploy/packages/portable.py; deploy/packages/build.sh makes all of them.
set(EPLB_PACKAGE_RELEASE 1 CACHE STRING "Debian revision of the packages; a higher one upgrades a lower one")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME eplb)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "EPLB maintainers <maintainers@eplb.invalid>")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_COMPONENTS_ALL eplbd eplbctl libeplb0 libeplb-dev python3-eplb eplb-doc)
set(CPACK_COMPONENTS_GROUPING IGNORE)
# Files outside of /usr, as those of /etc, need DESTDIR.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/deploy/cmake/deb_packages.cmake)
configure_file(deploy/cmake/before_packages.cmake.in before_packages.cmake @ONLY)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_BINARY_DIR}/before_packages.cmake)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${EPLB_PACKAGE_RELEASE})
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")

# eplb_debian_package(eplbd SECTION admin SUMMARY "one line" TEXT "sentences" [CONTROL files of deploy/packages/debian/eplbd])
# Without ARCHITECTURE it depends on the libraries that it is linked with.
macro(eplb_debian_package name)
  cmake_parse_arguments(DEB "" "SECTION;SUMMARY;TEXT;ARCHITECTURE" "CONTROL" ${ARGN})
  string(TOUPPER ${name} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${DEB_SECTION})
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${DEB_SUMMARY}\n${DEB_TEXT}")
  if(DEB_ARCHITECTURE)
    set(CPACK_DEBIAN_${upper}_PACKAGE_ARCHITECTURE ${DEB_ARCHITECTURE})
  else()
    set(CPACK_DEBIAN_${upper}_PACKAGE_SHLIBDEPS ON)
  endif()
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA)
  foreach(file ${DEB_CONTROL})
    list(APPEND CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/deploy/packages/debian/${name}/${file})
  endforeach()
endmacro()

eplb_debian_package(eplbd SECTION admin CONTROL postinst prerm postrm conffiles
  SUMMARY "expert-parallel load balancer for mixture-of-experts training (daemon)"
  TEXT "Decides where the experts of training jobs run: ranks report the tokens of\nexperts, the daemon proposes placements, each with its reason, and the ranks\nswitch together. Training goes on without it.\n\nThe service is installed, and neither enabled nor started.")
eplb_debian_package(eplbctl SECTION admin
  SUMMARY "expert-parallel load balancer for mixture-of-experts training (command line)"
  TEXT "Plans placements of experts offline from recorded loads, and asks and changes\na running eplbd: status, reasons, pause, rollback, settings.")
eplb_debian_package(libeplb0 SECTION libs CONTROL triggers
  SUMMARY "expert-parallel load balancer for mixture-of-experts training (library)"
  TEXT "What a trainer embeds on every rank: it counts the tokens of experts, reports\nthem to eplbd, and moves experts with their optimizer state between GPUs at\nthe boundaries of steps.")
eplb_debian_package(libeplb-dev SECTION libdevel
  SUMMARY "expert-parallel load balancer for mixture-of-experts training (headers)"
  TEXT "The C headers of libeplb, and its files for CMake and pkg-config.")
eplb_debian_package(python3-eplb SECTION python ARCHITECTURE all CONTROL postinst prerm
  SUMMARY "expert-parallel load balancer for mixture-of-experts training (Python)"
  TEXT "The client of trainers in Python, over libeplb. Also offline placements,\ncheckpoints in logical order, and the conversion of other engines' recorder\ndumps (eplb-convert).")
eplb_debian_package(eplb-doc SECTION doc ARCHITECTURE all
  SUMMARY "expert-parallel load balancer for mixture-of-experts training (pages)"
  TEXT "How to embed, operate and extend EPLB, example trainers in C, C++ and PyTorch,\nthe alerts, and a recorded load to try things on.")

include(CPack)
