#!/bin/sh
# Times every row of calibration-rows.csv on the phone that `adb` sees, and pulls the results.
#
#   ./calibration.sh SM8750 QNN-VERSION FOLDER-WITH-LIBRARIES
#
# The folder holds benchmark_litert_model and the libraries that PUSH.md names. `measured` gets
# rows.csv and results, for: python -m experiments.calibrate measurements=measured parent=SM8750
set -eu
soc=$1 version=$2 libraries=$3
target=/data/local/tmp/llada_jax/calibration
status() { adb shell dumpsys thermalservice | tr -d '\r' | sed -n 's/^Thermal Status: *//p' | head -n 1; }

mkdir -p measured
adb shell mkdir -p "$target/results"
adb push "$libraries"/. "$target/"
adb push head.tflite calibration-"$soc"-*.tflite "$target/"
head -n 1 calibration-rows.csv > measured/rows.csv
tail -n +2 calibration-rows.csv | while IFS=, read -r name file signature rest; do
  case $rest in
    *,npu,*) graph=calibration-$soc-$file.tflite
      on="--use_npu=true --dispatch_library_path=$target --require_full_delegation=true --qualcomm_htp_performance_mode=burst" ;;
    *) graph=head.tflite on="--use_cpu=true" ;;
  esac
  before=$(status)
  adb shell "cd $target && chmod +x benchmark_litert_model && \
    LD_LIBRARY_PATH=$target ADSP_LIBRARY_PATH=$target ./benchmark_litert_model --graph=$graph \
    --signature_to_run_for=$signature $on --num_runs=50 --warmup_runs=5 \
    --result_file_path=results/$name.pb" < /dev/null || { echo "no time of $name" >&2; continue; }
  after=$(status)
  thermal=$after; [ "$before" -gt "$after" ] && thermal=$before
  echo "$name,$file,$signature,${rest%,*,*},$thermal,$version" >> measured/rows.csv
done
adb pull "$target/results" measured/
