# SPDX-License-Identifier: Apache-2.0
# cmake --install: the program, the reports' Python with a starter, decks, scripts of jobs, documents and completion.
include(GNUInstallDirs)

# NCCL of a Python wheel is in no folder that the loader searches.
if(HYPERSLAB_CUDA_ENABLED)
  get_filename_component(hyperslab_nccl_folder "${NCCL_LIBRARY}" DIRECTORY)
  if(hyperslab_nccl_folder MATCHES "/nvidia/nccl/lib$")
    set_target_properties(hyperslab PROPERTIES INSTALL_RPATH "${hyperslab_nccl_folder}")
  endif()
endif()
install(TARGETS hyperslab RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
set(hyperslab_share "${CMAKE_INSTALL_DATADIR}/hyperslab")
install(DIRECTORY analysis DESTINATION "${hyperslab_share}"
  PATTERN __pycache__ EXCLUDE PATTERN tests EXCLUDE PATTERN results EXCLUDE)
install(DIRECTORY inputs DESTINATION "${hyperslab_share}")
install(PROGRAMS jobs/study.py jobs/keep-running.sh DESTINATION "${hyperslab_share}/jobs")
# keep-running.sh reads these two.
install(FILES jobs/lib.sh jobs/hosts.sh DESTINATION "${hyperslab_share}/jobs")
install(DIRECTORY jobs/slurm DESTINATION "${hyperslab_share}/jobs")
install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES README.md LICENSE CHANGELOG.md CITATION.cff DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# hyperslab-analysis finds the package from where it stands itself, so that a prefix can be moved.
file(RELATIVE_PATH hyperslab_share_from_bin
  "/prefix/${CMAKE_INSTALL_BINDIR}" "/prefix/${hyperslab_share}")
configure_file("${PROJECT_SOURCE_DIR}/packaging/hyperslab-analysis.in"
  "${PROJECT_BINARY_DIR}/hyperslab-analysis" @ONLY)
install(PROGRAMS "${PROJECT_BINARY_DIR}/hyperslab-analysis" DESTINATION "${CMAKE_INSTALL_BINDIR}")

# The program prints its completion; a cross-compiled one cannot run here and goes without.
if(NOT CMAKE_CROSSCOMPILING)
  foreach(shell bash zsh)
    install(CODE "execute_process(COMMAND \"$<TARGET_FILE:hyperslab>\" --completion ${shell}
      OUTPUT_FILE \"${PROJECT_BINARY_DIR}/completion.${shell}\" COMMAND_ERROR_IS_FATAL ANY)")
  endforeach()
  install(FILES "${PROJECT_BINARY_DIR}/completion.bash" RENAME hyperslab
    DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
  install(FILES "${PROJECT_BINARY_DIR}/completion.zsh" RENAME _hyperslab
    DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
endif()
