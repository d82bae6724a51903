# What `make install` puts down besides the program (cli/): headers, both libraries and loom, CMake package,
# weft.pc, manual pages, licence and change log. Everything finds its way from its own place, so that an
# installed tree can be moved.
include(CMakePackageConfigHelpers)

install(DIRECTORY include/weft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS weft weft_static weft_loom EXPORT weft_targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})

# find_package(weft) gives weft::weft, weft::weft_static and weft::weft_loom.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
install(EXPORT weft_targets NAMESPACE weft:: FILE weft-targets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/weft-config.cmake.in weft-config.cmake
                              INSTALL_DESTINATION ${package_dir}
                              NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# The interface only grows within a major version (docs/abi.md).
write_basic_package_version_file(weft-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/weft-config.cmake
              ${PROJECT_BINARY_DIR}/weft-config-version.cmake DESTINATION ${package_dir})

# pkg-config weft
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_PREFIX}/${pc_dir} ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
configure_file(cmake/weft.pc.in weft.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/weft.pc DESTINATION ${pc_dir})

# Manual pages come from the header's comments, that of the program from its own list of options.
set(man_stamp ${PROJECT_BINARY_DIR}/man/.made)
set(man_program)
set(man_needs)
if(TARGET weft_cli AND NOT CMAKE_CROSSCOMPILING)
  set(man_program $<TARGET_FILE:weft_cli>)
  set(man_needs weft_cli)
endif()
add_custom_command(
  OUTPUT ${man_stamp}
  COMMAND sh ${PROJECT_SOURCE_DIR}/scripts/man.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/man
          ${PROJECT_VERSION} ${man_program}
  COMMAND ${CMAKE_COMMAND} -E touch ${man_stamp}
  DEPENDS include/weft/weft.h docs/weft.1.in scripts/man.sh scripts/man.awk
          ${man_needs}
  COMMENT "Writing manual pages" VERBATIM)
add_custom_target(man ALL DEPENDS ${man_stamp})
install(DIRECTORY ${PROJECT_BINARY_DIR}/man/man1 ${PROJECT_BINARY_DIR}/man/man3
        DESTINATION ${CMAKE_INSTALL_MANDIR})

install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")
