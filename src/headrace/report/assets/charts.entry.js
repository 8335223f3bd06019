// What of Apache ECharts the report draws with; README.md says how charts.min.js is made from this.
import * as echarts from "echarts/core";
import { BarChart, CustomChart, LineChart, ScatterChart } from "echarts/charts";
import { GridComponent, MarkAreaComponent, MarkLineComponent, TooltipComponent } from "echarts/components";
import { SVGRenderer } from "echarts/renderers";

echarts.use([
  BarChart, CustomChart, LineChart, ScatterChart,
  GridComponent, MarkAreaComponent, MarkLineComponent, TooltipComponent,
  SVGRenderer,
]);

export const init = echarts.init;
